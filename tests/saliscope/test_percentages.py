"""Shares and their changes as text."""

from __future__ import annotations

import math

from saliscope.percentages import percent, points

SHARES = {
    0.0: "0%", 0.00099: "<0.1%", 0.001: "0.1%", 0.0994: "9.9%", 0.0995: "10%", 0.125: "13%", 1.0: "100%",
    1.234: "123%", -0.054: "−5.4%", -1e-6: "−<0.1%", math.nan: "NaN",
}  # fmt: skip
DIFFERENCES = {
    0.0: "0 pp", 0.0004: "+<0.1 pp", -0.0004: "−<0.1 pp", 0.0005: "+0.1 pp", -1: "−100.0 pp", math.inf: "NaN",
}  # fmt: skip


def test_shares_and_differences_have_the_digits_that_matter() -> None:
    assert {share: percent(share) for share in SHARES} == SHARES
    assert {difference: points(difference) for difference in DIFFERENCES} == DIFFERENCES
