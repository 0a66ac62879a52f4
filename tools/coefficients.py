"""Where the polynomials of src/codegen/math_coefs.h come from: for each table what it approximates, where and with which weight.
`python tools/coefficients.py kLog30` finds the best polynomial of that length by a Remez exchange in 40 digits and prints it
beside the table with both errors; without names, all. Needs mpmath. tests/python/test_coefficients.py checks the header."""

import re
import sys
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 40
HEADER = Path(__file__).resolve().parent.parent / "src" / "codegen" / "math_coefs.h"
ONE = mpf(1)


def tail(f, terms, over):
    """f without its first terms (coefficient, power), over x^over; near 0, where that cancels, in as many digits more."""

    def g(x):
        if not x:
            x = mpf(10) ** -30
        with mp.workdps(200):
            return (f(x) - sum(c * x**p for c, p in terms)) / x**over

    return g


def of_square(f, terms, over):
    """The same of an odd or even f as a function of z = x^2."""
    g = tail(f, terms, over)
    return lambda z: g(mp.sqrt(z))


def power(n):
    return lambda x: abs(x) ** n + mpf(10) ** -25


HALF = mp.log(2) / 2
ROOT = mp.sqrt(2)
ATANH = (3 - 2 * ROOT) ** 2
QUARTER = (mp.pi / 4) ** 2
EXP = tail(mp.exp, [(1, 0), (1, 1)], 2)
EXPM1 = tail(mp.exp, [(1, 0), (1, 1), (mpf(1) / 2, 2)], 3)
LOG = tail(lambda f: mp.log(1 + f), [(1, 1), (-mpf(1) / 2, 2)], 3)
LOG_OF_QUOTIENT = of_square(lambda s: 2 * mp.atanh(s), [(2, 1)], 3)
SIN = of_square(mp.sin, [(1, 1)], 3)
COS = of_square(mp.cos, [(1, 0), (-mpf(1) / 2, 2)], 4)
ATAN = of_square(mp.atan, [(1, 1)], 3)
ASIN = of_square(mp.asin, [(1, 1)], 3)
ERF = of_square(mp.erf, [(1, 1)], 1)


def erfcx(q):  # (2 t + 1) exp(t^2) erfc(t) of q = (t - 2) / (t + 2)
    t = 2 * (1 + q) / (1 - q)
    return (2 * t + 1) * mp.exp(t * t) * mp.erfc(t)


def erfc_over(q):  # erfc(t) of what erfcx gives: the double's result is 1 - erfc(t)
    t = 2 * (1 + q) / (1 - q)
    return mp.exp(-t * t) / (2 * t + 1)


def q_of(t):
    return (mpf(t) - 2) / (mpf(t) + 2)


def log2_erfc(t):
    return mp.log(mp.erfc(t), 2)


def log2_tail(t):  # of the part of a normal distribution past t
    return mp.log(mp.erfc(t / ROOT) / 2, 2)


def log2_tail_of_quotient(z):  # log2((1 + s) / (1 - s)) by s, without its terms of s and s^3, over z^2; z = s^2
    terms = [2 / (mp.log(2) * (2 * k + 1)) for k in range(2, 40)]
    return mp.polyval(terms[::-1], z)


# name: what, weight of the error, from, to. The header says what is done with the value; a weight of x^2 is that of a polynomial
# that is multiplied by x^2.
TABLES = {
    "kExpF32": (EXP, power(2), -HALF, HALF),
    "kExp30": (EXP, power(2), -HALF, HALF),
    "kExp53": (EXP, power(2), -HALF, HALF),
    "kExpm1F32": (EXPM1, power(2), -HALF, HALF),
    "kExpm130": (EXPM1, power(2), -HALF, HALF),
    "kExpm153": (EXPM1, power(2), -HALF, HALF),
    "kLogF32": (LOG, power(2), 1 / ROOT - 1, ROOT - 1),
    "kLog30": (LOG_OF_QUOTIENT, power(1), 0, ATANH),
    "kLog53": (LOG_OF_QUOTIENT, power(1), 0, ATANH),
    "kLog2InTwo53": (log2_tail_of_quotient, power(2), 0, ATANH),
    "kExp2F32": (lambda x: mpf(2) ** x, lambda x: mpf(2) ** -x, -ONE / 2, ONE / 2),
    "kTanhF32": (of_square(mp.tanh, [(1, 1)], 3), power(1), 0, mpf("0.36")),
    "kSinF32": (SIN, power(1.5), 0, (mp.pi / 2) ** 2),
    "kSin30": (SIN, power(1), 0, QUARTER),
    "kSin53": (SIN, power(1), 0, QUARTER),
    "kCos30": (COS, power(2), 0, QUARTER),
    "kCos53": (COS, power(2), 0, QUARTER),
    "kErfF32": (ERF, lambda z: ONE, 0, mpf("0.921875") ** 2),
    "kErf53": (ERF, lambda z: ONE, 0, ONE),
    "kLog2ErfcF32": (log2_erfc, mp.erfc, mpf("0.921875"), mpf(4)),
    "kLog2ErfcRough": (log2_erfc, lambda t: ONE, mpf(0), mpf(4)),
    "kLog2NormalTail8": (log2_tail, lambda t: ONE, mpf(0), mpf(4)),
    "kLog2NormalTail": (log2_tail, lambda t: ONE, mpf(0), mpf(4)),
    "kErfcx30": (erfcx, lambda q: ONE, q_of(0), q_of("10.4")),
    "kErfcx53": (erfcx, erfc_over, q_of(1), q_of(6)),
    "kAtan30": (ATAN, power(1), 0, (ROOT - 1) ** 2),
    "kAtan53": (ATAN, power(1), 0, (ROOT - 1) ** 2),
    "kAsin30": (ASIN, power(1), 0, ONE / 4),
    "kAsin53": (ASIN, power(1), 0, ONE / 4),
}


# Short forms for GPUs were fitted to what is done with them, over more than [0, 4]: they keep these errors there.
PROMISED = {"kLog2ErfcRough": mpf(2) ** -19, "kLog2NormalTail8": mpf(2) ** -10.8, "kLog2NormalTail": mpf(2) ** -15}


def header():
    """{name: coefficients} as the header has them, lowest first."""
    rows = re.findall(r"double (k\w+)\[\] = \{([^}]*)\}", HEADER.read_text(encoding="utf-8"))
    return {name: [mpf(c) for c in re.findall(r"-?\d[\d.e+-]*", text)] for name, text in rows}


def points(low, high, n):
    return [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * k / n) for k in range(n + 1)]


def error(name, coefficients, n=100):
    """The largest weighted error of the polynomial."""
    g, w, low, high = TABLES[name]
    return max(abs(w(x) * (mp.polyval(coefficients[::-1], x) - g(x))) for x in points(low, high, n))


def rounding(name, coefficients):
    """The most that it may cost that they are numbers of 53 bits (24)."""
    _, w, low, high = TABLES[name]
    bits = 53 if name.endswith("53") or name.endswith("30") else 24
    return max(w(x) * sum(abs(c * x**k) for k, c in enumerate(coefficients)) for x in points(low, high, 40)) / mpf(2) ** bits


def remez(name, length, rounds=8):
    """The polynomial with the least largest error, found by making the errors at length + 1 places equal with signs in turn."""
    g, w, low, high = TABLES[name]
    n = length + 1
    low, high = mpf(low), mpf(high)
    places = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (k + ONE / 2) / n) for k in range(n)]
    grid = points(low, high, 24 * n)
    values, weights = [g(x) for x in grid], [w(x) for x in grid]
    coefficients = []
    for _ in range(rounds):
        rows = mp.matrix(n, n)
        right = mp.matrix(n, 1)
        for i, x in enumerate(places):
            for k in range(length):
                rows[i, k] = x**k
            rows[i, length] = (-1) ** i / w(x)
            right[i] = g(x)
        solved = mp.lu_solve(rows, right)
        coefficients = [solved[k] for k in range(length)]
        errors = [v * (mp.polyval(coefficients[::-1], x) - y) for x, y, v in zip(grid, values, weights)]
        peaks = []  # the largest error of each run of one sign
        for i, e in enumerate(errors):
            if peaks and (errors[peaks[-1]] > 0) == (e > 0):
                peaks[-1] = max(peaks[-1], i, key=lambda j: abs(errors[j]))
            else:
                peaks.append(i)
        while len(peaks) > n:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < n or max(map(abs, errors)) < abs(solved[length]) * mpf("1.0001"):
            break
        places = [grid[i] for i in peaks]
    return coefficients


def main():
    known = header()
    for name in sys.argv[1:] or TABLES:
        best = remez(name, len(known[name]))
        print(f"{name}: error {mp.nstr(error(name, best), 3)}, of the table {mp.nstr(error(name, known[name]), 3)}")
        for ours, theirs in zip(best, known[name]):
            print(f"  {mp.nstr(ours, 17):24} {mp.nstr(theirs, 17)}")


if __name__ == "__main__":
    main()
