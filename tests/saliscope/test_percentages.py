"""Shares and their changes as text."""

from __future__ import annotations

import math

import pytest

from saliscope.percentages import percent, points


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (0.00099, "<0.1%"),
        (0.001, "0.1%"),
        (0.0994, "9.9%"),
        (0.0995, "10%"),
        (0.125, "13%"),
        (1.0, "100%"),
        (1.234, "123%"),
        (-0.054, "−5.4%"),
        (-1e-6, "−<0.1%"),
        (math.nan, "NaN"),
    ],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (0.0, "0 pp"),
        (0.0004, "+<0.1 pp"),
        (-0.0004, "−<0.1 pp"),
        (0.0005, "+0.1 pp"),
        (-1, "−100.0 pp"),
        (math.inf, "NaN"),
    ],
)
def test_points(difference: float, text: str) -> None:
    assert points(difference) == text
