"""python -m framejit run SCRIPT [ARGS] | doctor [--json] [--gpu] | explain FJ0007 [...] | options | report DIR | minify SCRIPT [ARGS] | completion SHELL"""

import argparse
import sys

from . import __version__


def _doctor(args):
    from ._doctor import examine

    rows, healthy = examine(args.gpu)
    if args.json:
        import json

        print(json.dumps({"healthy": healthy, "findings": [{"name": n, "finding": f} for n, f in rows]}, indent=1))
    else:
        width = max(len(name) for name, _ in rows)
        for name, finding in rows:
            print(f"{name:{width}}  {finding}")
        print("healthy" if healthy else "NOT healthy: see the lines that say FAILED")
    return 0 if healthy else 1


def _explain(args):
    from . import _framejit
    from .errors import unknown

    table = {row[0]: row for row in _framejit.breaks()}
    for name in args.id or table:
        row = table.get(name.upper())
        if row is None:
            print(unknown("break", name, list(table)), file=sys.stderr)
            return 2
        identifier, message, explanation, hint = row
        print(f"{identifier}: {message}\n  {explanation}" + (f"\n  help: {hint}" if hint else ""))
    return 0


def _options(args):
    from ._config import config

    print(config.describe())
    return 0


def _report(args):
    from ._report import run

    return run(args.folder, args.json, args.html, args.perfetto, args.diff)


def _minify(args):
    from ._minify import Minifier

    return Minifier(args.script, args.args, args.out, args.slower, args.timeout).minify()


def _run(args):
    import os
    import runpy

    from ._install import install_with_torch

    install_with_torch()
    sys.argv = [args.script, *args.args]
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    runpy.run_path(args.script, run_name="__main__")
    return 0


# Completes `python -m framejit ...`; whatever else python is given is completed as files.
_BASH = """_framejit() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=""
  if [[ ${{COMP_WORDS[1]}} == -m && ${{COMP_WORDS[2]}} == framejit ]]; then
    case ${{COMP_WORDS[3]}} in
{cases}
    esac
    [[ $COMP_CWORD == 3 ]] && words="{commands}"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current"))
}}
complete -o filenames -F _framejit python python3"""


def _completion(args):
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    rows = []
    for name, parser in commands.choices.items():
        words = [flag for action in parser._actions for flag in (action.option_strings or action.choices or ())]
        if name == "explain":
            from . import _framejit

            words += [row[0] for row in _framejit.breaks()]
        rows.append(f'      {name}) words="{" ".join(words)}" ;;')
    script = _BASH.format(cases="\n".join(rows), commands=" ".join(["--help", "--version", *commands.choices]))
    print(script if args.shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}")
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="python -m framejit", description="framejit on this machine.")
    parser.add_argument("--version", action="version", version=f"framejit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="check this machine: versions, CPU, frame hook, a self-test")
    doctor.add_argument("--json", action="store_true", help="machine-readable output")
    doctor.add_argument("--gpu", action="store_true", help="compile on the first GPU, run, and compare with the framework")
    doctor.set_defaults(run=_doctor)
    run = commands.add_parser("run", help="run a script with framejit in the place of torch.compile")
    run.add_argument("script")
    run.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    run.set_defaults(run=_run)
    explain = commands.add_parser("explain", help="what a break id (FJ0001) means; without one: the whole table")
    explain.add_argument("id", nargs="*")
    explain.set_defaults(run=_explain)
    options = commands.add_parser("options", help="list framejit.config and its environment variables")
    options.set_defaults(run=_options)
    report = commands.add_parser("report", help="what the events of a run say: where the time went, and what to fix first")
    report.add_argument("folder", metavar="DIR", help="the folder that FRAMEJIT_EVENTS named, or one of its files")
    report.add_argument("--json", metavar="FILE", help="write it as JSON (docs/events.md has the schema); - is the standard output")
    report.add_argument("--html", metavar="FILE", help="write it as one page that needs no network")
    report.add_argument("--perfetto", metavar="FILE", help="write the timeline for https://ui.perfetto.dev")
    report.add_argument("--diff", metavar="DIR2", help="compare with the events of a later run")
    report.set_defaults(run=_report)
    minify = commands.add_parser("minify", help="find the smallest program that shows a script's wrong result, crash or slowdown")
    minify.add_argument("--out", metavar="FILE", default="minified.py", help="where it is written (default minified.py)")
    minify.add_argument("--slower", type=float, metavar="FACTOR", default=1.5, help="how much slower than eager is a fault (default 1.5)")
    minify.add_argument("--timeout", type=float, metavar="SECONDS", default=300.0, help="for one run of the script or of a candidate (default 300)")
    minify.add_argument("script")
    minify.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    minify.set_defaults(run=_minify)
    completion = commands.add_parser("completion", help='completes these commands in a shell: eval "$(python -m framejit completion bash)"')
    completion.add_argument("shell", choices=["bash", "zsh"])
    completion.set_defaults(run=_completion)
    return parser


def main(argv: "list[str] | None" = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:  # whoever read the output has enough
        sys.stdout = None
        return 0


if __name__ == "__main__":
    sys.exit(main())
