"""The polynomials of src/codegen/math_coefs.h are the best of their length, but for the rounding of their coefficients."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("mpmath")
TOOLS = Path(__file__).resolve().parents[2] / "tools"
if not (TOOLS / "coefficients.py").exists():
    pytest.skip("a packed folder without the sources", allow_module_level=True)
sys.path.insert(0, str(TOOLS))
import coefficients  # noqa: E402

KNOWN = coefficients.header()


def test_every_table_says_what_it_is_of():
    assert set(KNOWN) == set(coefficients.TABLES)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_no_polynomial_of_that_length_is_better(name):
    table = KNOWN[name]
    bound = coefficients.PROMISED.get(name)
    if bound is None:
        best = coefficients.error(name, coefficients.remez(name, len(table)))
        bound = best * coefficients.mpf("1.03") + coefficients.rounding(name, table)
    error = coefficients.error(name, table)
    assert error <= bound
    worse = [table[0] + 2 * bound / coefficients.TABLES[name][1](coefficients.mpf(coefficients.TABLES[name][3])), *table[1:]]
    assert coefficients.error(name, worse) > bound  # the check sees a wrong digit
