"""Checks that keep the house in order; `tools/dev lint` calls it with the C and C++ sources. Prints one line a finding."""

import ast
import glob
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Lowest first; nothing includes a later stage. The second row may include Python.h.
STAGES = "diag shape graph rules autodiff loop pass runtime codegen compiler surface".split()
PYTHON_STAGES = "tensor bytecode guard frame capture".split()  # capture implements the interfaces of frame
# Public headers belong to the stage that makes what they declare.
PUBLIC = {"dtype": "shape", "shape": "shape", "call": "graph", "ops.def": "graph", "graph": "graph", "compile": "compiler"}
# framejit/compile.h is an interface that runtime and codegen implement: the header itself stands below them.
PUBLIC_RANK = {**PUBLIC, "compile": "loop"}
# What differs between CPython versions: the structs of frames; the counters and watchers of types and dictionaries.
VERSION_FILES = re.compile(r"src/frame/(py31\d\.c|slot\.h)|src/guard/(versions\.(h|cc)|own_values\.c)")
FORBIDDEN_SYMBOLS = re.compile(r"\b(llvm|spdlog|fmt|absl)::|\bLLVM[A-Z]\w+$")

findings = []


def report(path, line, text):
    findings.append(f"{path}:{line}: {text}")


def stage_of(path):
    parts = Path(path).parts
    return parts[1] if len(parts) > 2 and parts[0] == "src" else None


def check_includes(path, number, line, order):
    included = re.match(r'#\s*include\s*[<"]([^">]+)[">]', line)
    stage = stage_of(path)
    if not included or stage not in order:
        return
    target = included.group(1)
    if target == "Python.h" and stage in STAGES:
        report(path, number, f"{stage}/ is left of the bar and must not include Python.h")
    head, _, rest = target.partition("/")
    below = PUBLIC_RANK.get(rest.removesuffix(".h")) if head == "framejit" else head
    if below in order and order.index(below) > order.index(stage):
        report(path, number, f"{stage}/ includes {target}, which is {below}: upward")
    if stage != "codegen" and head in ("llvm", "llvm-c"):
        report(path, number, "LLVM headers belong to codegen/ only")
    if head == "spdlog" and stage != "diag":
        report(path, number, "spdlog belongs to diag/ only")


def check_sources(paths):
    order = STAGES + PYTHON_STAGES
    for path in paths:
        lines = (ROOT / path).read_text().splitlines()
        if len(lines) > 700:
            report(path, 1, f"{len(lines)} lines: split it (limit 700)")
        check_lengths(path, functions(lines))
        for number, line in enumerate(lines, 1):
            check_includes(path, number, line, order)
            if "PY_VERSION_HEX" in line and not VERSION_FILES.fullmatch(path):
                report(path, number, "PY_VERSION_HEX belongs to src/frame/py31*.c, src/frame/slot.h, src/guard/versions.* and src/guard/own_values.c")


LONGEST_FUNCTION = 100
# The head of what opens a brace and is no function.
NO_FUNCTION = re.compile(r"(namespace|extern|struct|class|enum|union|if|for|while|switch|else|do|return|case|static_assert)\b|\}")


def functions(lines):
    """(first line, last line, name) of every function defined at namespace or class level. The sources are formatted: a
    definition is indented by at most four spaces, and ends with a brace in the column where it begins."""
    at = 0
    while at < len(lines):
        text = lines[at].strip()
        indent = len(lines[at]) - len(lines[at].lstrip())
        end = at  # of the head, which may take several lines
        while end + 1 < len(lines) and not re.search(r"[{};\\]$|^$", re.sub(r"\s*//.*", "", lines[end]).strip()):
            end += 1
        head = " ".join(line.strip() for line in lines[at : end + 1])
        opens = re.sub(r"\s*//.*", "", lines[end]).rstrip().endswith("{")
        if indent > 4 or text[:1] in ("", "#", "/", ":") or not opens or "(" not in head or NO_FUNCTION.match(text):
            at += 1
            continue
        last = next((i for i in range(end + 1, len(lines)) if re.match(rf" {{{indent}}}\}}", lines[i])), end)
        yield at, last, head.split("(")[0].split()[-1]
        at = last + 1


def python_functions(text):
    """Likewise of Python, functions inside of functions too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno - 1, node.end_lineno - 1, node.name


def check_lengths(path, found):
    for start, last, name in found:
        if last - start + 1 > LONGEST_FUNCTION:
            report(path, start + 1, f"{last - start + 1} lines in one function (limit {LONGEST_FUNCTION}): {name}")


def check_breaks():
    """Every row of the break table has a test that names it and a place that raises it."""
    table = ROOT / "src/diag/breaks.def"
    tests = "".join(p.read_text() for p in (ROOT / "tests").rglob("*.*") if p.suffix in (".py", ".cc"))
    code = "".join(p.read_text() for p in (ROOT / "src").rglob("*.cc"))
    seen = set()
    for number, line in enumerate(table.read_text().splitlines(), 1):
        row = re.match(r'X\((k\w+), "(FJ\d{4})"', line)
        if not row:
            continue
        enumerator, identifier = row.groups()
        if identifier in seen:
            report("src/diag/breaks.def", number, f"{identifier} is used twice")
        seen.add(identifier)
        if identifier not in tests and enumerator not in tests:
            report("src/diag/breaks.def", number, f"{identifier} has no test")
        if not re.search(rf"\b{enumerator}\b", code):
            report("src/diag/breaks.def", number, f"{identifier} ({enumerator}) is never raised")


def check_options():
    """Every option has a test that names it, or its variable."""
    tests = "".join(p.read_text() for p in (ROOT / "tests").rglob("*.*") if p.suffix in (".py", ".cc", ".txt"))
    for number, line in enumerate((ROOT / "src/diag/options.def").read_text().splitlines(), 1):
        row = re.match(r'X\("(\w+)", "(\w*)"', line)
        if row and not re.search(rf"\b{row[1]}\b" + (rf"|\b{row[2]}\b" if row[2] else ""), tests):
            report("src/diag/options.def", number, f"{row[1]} has no test")


def check_format(paths):
    for start in range(0, len(paths), 50):
        done = subprocess.run(["clang-format-19", "--dry-run", *paths[start : start + 50]], cwd=ROOT, text=True, capture_output=True)
        files = dict.fromkeys(re.findall(r"^(\S+?):(\d+):", done.stderr, re.M))
        for name in dict.fromkeys(name for name, _ in files):
            report(name, next(n for m, n in files if m == name), "clang-format disagrees (tools/dev fmt)")


# Programs that are wrong on purpose, or whose text is run elsewhere.
ODD_PYTHON = ["tests/frame/functions.py", "tests/python/programs/*.py", "tests/python/test_census.py", "tests/python/gpu_training_test.py", "bench/library_programs/settings.py"]


def check_python():
    """Names that nobody defines, imports that nobody reads: ruff's pyflakes rules. Installed for that where it is missing."""
    python = ROOT / ".venv" / "bin" / "python"
    ruff = [python if python.exists() else sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True).returncode:
        subprocess.run([ruff[0], "-m", "pip", "install", "-q", "ruff"], capture_output=True)
    if subprocess.run([*ruff, "--version"], capture_output=True).returncode:
        return report("tools/lint.py", 1, "ruff cannot be installed: Python is not checked")
    rules = ["--select", "F", "--ignore", "F841", "--per-file-ignores", ",".join(f"{p}:F" for p in ODD_PYTHON)]
    folders = ["pymodule", "tools", "tools/dev", "bench", "tests"]
    done = subprocess.run([*ruff, "check", "-q", "--no-cache", "--output-format", "concise", *rules, *folders], cwd=ROOT, text=True, capture_output=True)
    for line in done.stdout.splitlines():
        if found := re.match(r"(.*?):(\d+):\d+: (.*)", line):
            report(*found.groups())


def check_python_lengths():
    files = [path for folder in ("pymodule", "tools", "bench", "tests", "examples") for path in (ROOT / folder).rglob("*.py")]
    for path in [*files, ROOT / "tools" / "dev"]:
        check_lengths(path.relative_to(ROOT), python_functions(path.read_text()))


def check_tidy(paths):
    """clang-tidy (.clang-tidy says which checks) over every file that is compiled; an hour of one core."""
    built = ROOT / "build" / "compile_commands.json"
    if not built.exists():
        return report("tools/lint.py", 1, "--all wants a build (tools/dev build): it says how files are compiled")
    known = {str(Path(row["directory"], row["file"]).resolve()) for row in json.loads(built.read_text())}
    wanted = [path for path in paths if str((ROOT / path).resolve()) in known]

    def tidy(path):
        return subprocess.run(["clang-tidy-19", "-p", built.parent, "--quiet", path], cwd=ROOT, text=True, capture_output=True)

    seen = set()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(tidy, wanted):
            for path, line, text in re.findall(r"^(\S+?):(\d+):\d+: (?:error|warning): (.*)", done.stdout, re.M):
                found = (os.path.relpath(path, ROOT), line, text)  # a header's, once
                if found not in seen:
                    seen.add(found)
                    report(*found)


def check_symbols():
    """The shipped libraries export nothing of LLVM, spdlog or fmt, and need none of their shared libraries."""
    for path in sorted(glob.glob(str(ROOT / "build/python/framejit/*.so"))):
        name = Path(path).name
        symbols = subprocess.run(["nm", "-DC", "--defined-only", path], text=True, capture_output=True, check=True).stdout
        leaked = [line.split(maxsplit=2)[-1] for line in symbols.splitlines() if FORBIDDEN_SYMBOLS.search(line)]
        if leaked:
            report(f"build/{name}", 0, f"exports {len(leaked)} third-party symbols, the first: {leaked[0]}")
        if name.startswith("_framejit"):
            exported = [line.split()[-1] for line in symbols.splitlines()]
            if exported != ["PyInit__framejit"]:
                report(f"build/{name}", 0, f"exports {exported[:5]}, expected PyInit__framejit alone")
        needed = subprocess.run(["readelf", "-d", path], text=True, capture_output=True, check=True).stdout
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", needed):
            if re.match(r"lib(LLVM|spdlog|fmt|absl|torch|cuda)", library):
                report(f"build/{name}", 0, f"needs {library} at run time")


def check_documents():
    """Figures in documents are those of bench/results/, and generated pages those of their tables."""
    sys.path.insert(0, str(ROOT))
    from bench import performance
    from tools import documents

    for name in performance.stale():
        report(name, 1, "does not say what bench/results/ says (tools/dev performance)")
    for name in documents.stale():
        report(name, 1, "does not say what its table and examples say (tools/dev docs)")


def main():
    paths = [path for path in sys.argv[1:] if path != "--all"]
    check_documents()
    check_sources(paths)
    check_breaks()
    check_options()
    check_python()
    check_python_lengths()
    check_format(paths)
    check_symbols()
    if "--all" in sys.argv:
        check_tidy(paths)
    print("\n".join(findings) or "lint: nothing to complain about")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
