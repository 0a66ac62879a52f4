"""Pages that are generated: docs/breaks.md from the break table and examples/breaks, docs/options.md from the options table, docs/tested.md from tests/tested.jsonl.
`tools/dev docs` writes them, `tools/dev lint` says where they differ. And the folder of pages of which `tools/dev docs --site` makes a site (mkdocs.yml)."""

import ast
import json
import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_STRING = r'"((?:[^"\\]|\\.)*)"'
_TYPES = {"b": "bool", "i": "integer", "s": "text", "l": "names, separated by commas"}


def _rows(table, pattern):
    """Rows X(...) of a table, by a pattern of their fields."""
    text = re.sub(r"^#.*$|//.*$", "", (ROOT / "src" / "diag" / table).read_text(), flags=re.M)
    for match in re.finditer(r"^X\(" + pattern + r"\)", text, re.M):
        yield [ast.literal_eval(f'"{field}"') for field in match.groups()]


def _example(identifier):
    """The program without what only the test reads; "" if the row has none."""
    path = ROOT / "examples" / "breaks" / f"{identifier.lower()}.py"
    if not path.exists():
        return ""
    source = path.read_text()
    kept = source.splitlines()
    for node in ast.parse(source).body:
        names = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)] or [getattr(node, "name", "")]
        if {"calls", "fixed_calls", "before"} & set(names):
            kept[node.lineno - 1 : node.end_lineno] = [None] * (node.end_lineno - node.lineno + 1)
    text = "\n".join(line for line in kept if line is not None)
    return re.sub(r"\n{3,}", "\n\n\n", text).strip()


def breaks_page():
    out = ["# Graph breaks", "",
           "A *break* is where a graph ends: the instruction that is named runs in Python, and a new graph begins behind it. Results are the same",
           "as without framejit. `FRAMEJIT_LOG=breaks` prints breaks as they are met, `framejit.explain(f)(x)` those of one call, and",
           "`python -m framejit report` those of a whole run with the time they took ([events.md](events.md)).", "",
           "This page is written by `tools/dev docs` from `src/diag/breaks.def` and `examples/breaks/`. The tests run every example: `breaks` meets the",
           "break, and `fixed` does not.", ""]  # fmt: skip
    rows = list(_rows("breaks.def", r"k\w+, " + r",\s*".join([_STRING] * 4)))
    out += ["| id | what stops the graph |", "| --- | --- |", *(f"| [{i}](#{i.lower()}) | {message} |" for i, message, _, _ in rows), ""]
    for identifier, message, explanation, hint in rows:
        out += [f'<a id="{identifier.lower()}"></a>', "", f"## {identifier}: {message}", "", explanation, ""]
        if hint:
            out += [f"What helps: {hint}.", ""]
        if example := _example(identifier):
            out += ["```python", example, "```", ""]
    return "\n".join(out).rstrip() + "\n"


def options_page():
    out = ["# Options", "",
           "An option is an attribute of `framejit.config`; most have an environment variable too, which is read once. `framejit.config.patch(fuse=False)` sets",
           "options for a `with` block or a function's calls, `framejit.compile(f, options={...})` for one function. `python -m framejit options` prints the values",
           "that hold. Unknown names and values are errors, which name the valid ones.", "",
           "This page is written by `tools/dev docs` from `src/diag/options.def`.", "",
           "| `framejit.config` | variable | type | default | valid | what it does |", "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    pattern = rf"{_STRING}, {_STRING}, '(\w)', {_STRING}, {_STRING},\s*{_STRING}"
    for field, variable, kind, default, valid, text in _rows("options.def", pattern):
        cells = [f"`{field}`", f"`{variable}`" if variable else "", _TYPES[kind], f"`{default}`" if default else "",
                 ", ".join(f"`{v}`" for v in valid.split(",") if v), text.replace("|", "\\|")]  # fmt: skip
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def tested_page():
    out = ["# What was tested", "",
           "framejit knows CPython 3.11 to 3.14 (not its free-threaded builds), torch and NumPy, with either of them missing. These are the versions with which",
           "the quick Python suite was run, and how it ended. Tests that need torch are skipped without it.", "",
           "This page is written by `tools/dev test --record` into `tests/tested.jsonl`, and from there by `tools/dev docs`.", "",
           "| CPython | torch | NumPy | passed | failed | skipped | commit | day |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    tested = ROOT / "tests" / "tested.jsonl"
    rows = [json.loads(line) for line in tested.read_text().splitlines()] if tested.exists() else []
    for row in rows:
        out.append("| " + " | ".join(str(row[key]) or "none" for key in ("python", "torch", "numpy", "passed", "failed", "skipped", "commit", "date")) + " |")
    failed = [f"- CPython {row['python']}, torch {row['torch'] or 'none'}: {row['note']}." for row in rows if row.get("note")]
    return "\n".join(out + (["", "What failed:", "", *failed] if failed else [])) + "\n"


PAGES = {"docs/breaks.md": breaks_page, "docs/options.md": options_page, "docs/tested.md": tested_page}


def stale():
    """The pages that are not what would be written now."""
    return [name for name, page in PAGES.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != page()]


def write():
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())


# --- the site -------------------------------------------------------------------------------------------------------------
def site_pages():
    """{a file of the repository: its page}."""
    pages = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "examples/README.md": "examples.md"}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        pages[f"docs/{name}"] = name
    return pages


def _linked(text, source, page, pages, folder):
    """The text with links that lead from the page to where they led from its source. A file that is no page is put beside the pages."""

    def link(match):
        target, anchor = match.group(1), match.group(2) or ""
        if "://" in target or not target:
            return match.group(0)
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path not in pages:
            if (ROOT / path).is_dir():
                path = next((p for p in pages if p.startswith(f"{path}/")), "README.md")
            else:
                (folder / "files" / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, folder / "files" / path)  # raises for links that lead nowhere
        there = pages.get(path, f"files/{path}")
        return f"]({os.path.relpath(there, os.path.dirname(page) or '.')}{anchor})"

    fences = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else re.sub(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", link, part) for part in fences)


def write_site_pages(folder):
    """Everything that mkdocs.yml names, into an empty folder."""
    pages = site_pages()
    shutil.rmtree(folder, ignore_errors=True)
    for source, page in pages.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(_linked((ROOT / source).read_text(), source, page, pages, folder))
    (folder / "wide.css").write_text(".md-grid { max-width: 1700px; }\n")  # the tables are wide
    return sorted(pages.values())


if __name__ == "__main__":
    write()
    write_site_pages(ROOT / "build" / "site-pages")
