"""A sample of `make hostile`: files are opened or refused with a message, and no decoder ends."""

from __future__ import annotations

import sys

import pytest

from benchmarks.public import hostile
from benchmarks.public.files import checkpoints as hostile_checkpoints
from benchmarks.public.files import images as hostile_images
from benchmarks.public.files.case import REFUSED, VALID, Case

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
LARGE = ("pixels", "of zeros", "TIFF", "million", "PNG zTXt", "50,000", "000 chunks", "frames", "13_000", "13000")
"""Parts of the names of files that take more than a moment; `make hostile` has them."""


def test_a_sample_of_the_files() -> None:
    cases = [case for case in hostile_images.cases() if not any(part in case.name for part in LARGE)][::25]
    assert len(cases) > 40
    groups = hostile.decode(cases)
    assert [failure for found in groups.values() for failure in found.failures] == []
    assert all(row.passed for row in hostile.rows(groups))


def test_failures_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with another outcome, a slow one, and one that is not opened."""
    text = Case("valid", "text", lambda: b"hello", VALID)
    image = hostile_images.cases()[0]
    found = hostile.decode([text, Case("bombs", "image", image.make, REFUSED)])
    assert [row.passed for row in hostile.rows(found)] == [False, False]
    assert "opened instead of refused" in found["bombs"].failures[0]
    monkeypatch.setattr(hostile, "SECONDS", -1.0)
    assert "s, " in hostile.decode([image])["valid"].failures[0]


def test_a_sample_of_the_checkpoints() -> None:
    row, failures = hostile_checkpoints.load(every=23)
    assert failures == [] and row.passed
