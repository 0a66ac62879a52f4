"""What the documents show is what the program prints."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a packed folder has no documents")


def blocks(page, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)


def test_the_map_shows_real_output(torch, tmp_path):
    (tmp_path / "example.py").write_text(blocks("map.md", "python")[0])
    env = {**os.environ, "FRAMEJIT_LOG": "guards,graph,fusion,loop", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    printed = done.stderr.replace(str(tmp_path) + os.sep, "")
    shown = blocks("map.md", "text")
    assert len(shown) >= 5
    for block in shown:
        assert block in printed, f"docs/map.md shows what is not printed:\n{block}\nprinted:\n{printed}"


def test_the_slow_script_and_its_fixed_version(np, tmp_path):
    slow, fixed = blocks("slow_script.md", "python")
    told = {}
    env = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEJIT_")} | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for name, program in (("simulate", slow), ("fixed", fixed)):
        (tmp_path / f"{name}.py").write_text(program)
        subprocess.run([sys.executable, f"{name}.py"], cwd=tmp_path, env={**env, "FRAMEJIT_EVENTS": f"{name}.trace"}, check=True)
        (tmp_path / "distances.txt").rename(tmp_path / f"{name}.txt")
        done = subprocess.run([sys.executable, "-m", "framejit", "report", f"{name}.trace", "--json", "-"], cwd=tmp_path, env=env, capture_output=True, text=True)
        told[name] = json.loads(done.stdout)
    before, after = ([float(line.split()[-1]) for line in (tmp_path / f"{name}.txt").read_text().splitlines()] for name in ("simulate", "fixed"))
    assert len(before) == 800 and np.allclose(before, after)
    line = slow.splitlines().index('    with open(log, "a") as file:') + 1
    causes = told["simulate"]["fix_first"]
    assert ("break", line) in {(c["kind"], c["line"]) for c in causes}  # which comes first was measured
    shown = re.findall(r"^  \d\. (.*)$", "".join(blocks("slow_script.md", "text")), re.M)
    # Which step is slow was measured, and on a machine that does other things another may be.
    assert len(shown) == 2 and [title for title in shown if title in {c["title"] for c in causes}]
    assert told["fixed"]["breaks"] == [] and not [c for c in told["fixed"]["fix_first"] if c["kind"] == "break"]


def test_the_site(tmp_path):
    """Every page is in mkdocs.yml and the other way round; links lead somewhere; and MkDocs has no complaint, where it is installed."""
    spec = importlib.util.spec_from_file_location("documents", ROOT / "tools" / "documents.py")
    documents = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(documents)
    pages = documents.write_site_pages(tmp_path / "pages")
    settings = (ROOT / "mkdocs.yml").read_text()
    assert sorted(re.findall(r"([\w/]+\.md)$", settings.partition("\nnav:")[2], re.M)) == pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", re.sub(r"^```.*?^```$", "", (tmp_path / "pages" / page).read_text(), flags=re.M | re.S)):
            assert (tmp_path / "pages" / page).parent.joinpath(target).exists(), f"{page} links to {target}"
    builders = [p for p in (ROOT / ".venv-docs" / "bin" / "python", Path(sys.executable)) if p.exists()]
    has = [p for p in builders if subprocess.run([p, "-c", "import mkdocs, material"], capture_output=True).returncode == 0]
    if has:
        settings = settings.replace("build/site-pages", str(tmp_path / "pages")).replace("build/site", str(tmp_path / "site"))
        (tmp_path / "mkdocs.yml").write_text(settings)
        done = subprocess.run([has[0], "-m", "mkdocs", "-q", "build", "--strict"], cwd=tmp_path, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "site" / "index.html").exists()


def test_the_example_of_a_back_end_runs(np, tmp_path):
    (tmp_path / "example.py").write_text(blocks("backends.md", "python")[0])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 calls on 2 inputs:") and "numpy.tanh" in done.stdout


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_documents_name_exist():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for path in re.findall(r"`((?:src|tests|pymodule|include|bench|tools)/[\w./]+\.\w+)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_generated_pages_are_those_of_their_tables():
    spec = importlib.util.spec_from_file_location("documents", ROOT / "tools" / "documents.py")
    documents = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(documents)
    assert documents.stale() == []
    import framejit

    assert [i for i, *_ in framejit._framejit.breaks()] == re.findall(r"^## (FJ\d+)", documents.breaks_page(), re.M)
    assert [field for field, *_ in framejit._framejit.options()] == re.findall(r"^\| `(\w+)` \|", documents.options_page(), re.M)


def test_figures_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("performance", ROOT / "bench" / "performance.py")
    performance = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(performance)
    assert performance.stale() == []
