"""tools/dev bench [CASE...] [--peer] [--json F]: eager, framejit and (with --peer) torch.compile, interleaved;
tools/dev bench loops: programs with loops (bench/loops.py); tools/dev bench CASE... --against FOLDER: beside another build (bench/against.py)."""

import argparse
import sys

from . import cases, measure


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["loops"] and "--against" not in argv:
        from . import loops

        return loops.main(argv[1:])
    parser = argparse.ArgumentParser(prog="tools/dev bench", description=__doc__)
    parser.add_argument("case", nargs="*", help=f"of {', '.join(cases.CASES)} (default: all)")
    parser.add_argument("--peer", action="store_true", help="measure torch.compile too")
    parser.add_argument("--json", metavar="F", help="append JSON lines to this file")
    parser.add_argument("--ours", action="store_true", help="framejit alone, a second a row: for comparing builds")
    parser.add_argument("--against", metavar="FOLDER", help="measure another build's package beside this one, in fresh processes by turns")
    parser.add_argument("--rounds", type=int, default=5, help="with --against: how often each build runs a case (default 5)")
    args = parser.parse_args(argv)
    for name in args.case:
        if name not in cases.CASES and not (args.against and name == "loops"):
            parser.error(f"no case {name!r} (there are: {', '.join(cases.CASES)})")
    if args.against:
        from . import against

        return against.main(args.case or [*cases.CASES, "loops"], args.against, args.rounds, args.json)
    measure.OURS_ALONE = args.ours
    about = measure.machine()
    print(f"{about['cpu']}, {about['cores']} cores, {' '.join(about['features'])}; Python {about['python']}, torch {about['torch']}, NumPy {about['numpy']}")
    print(f"{'case':14} {'metric':42} {'eager':>10} {'framejit':>10} {'peer':>10} {'':3} {'vs eager':>7} {'vs peer':>7}")
    for name in args.case or cases.CASES:
        rows = []
        try:
            for row in cases.CASES[name](args.peer):
                measure.show(row)
                rows.append(row)
        except ImportError as error:
            print(f"{name:14} skipped: {error}")
        if args.json:
            measure.append(args.json, rows, f"tools/dev bench {name}{' --peer' if args.peer else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
