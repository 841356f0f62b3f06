"""The files of `make hostile` are opened or refused with a message; a sample of them in the sandbox ends no decoder."""

from __future__ import annotations

import re
import sys
import time

import pytest

from benchmarks.public import hostile
from benchmarks.public.files import checkpoints as hostile_checkpoints
from benchmarks.public.files import images as hostile_images
from benchmarks.public.files.case import EITHER, REFUSED, VALID, Case
from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
LARGE = re.compile(r"\b([78][0-9]{3}|1[0-9]{4}|16384|100,?000|4000, 4000)\b|million|zTXt|one strip used")
"""Parts of the names of files that take more than a moment; `make hostile` has them."""
SMALL = [case for case in hostile_images.cases() if not LARGE.search(case.name)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", sorted({case.group for case in SMALL}))
def test_files_are_opened_or_refused_with_a_message(group: str) -> None:
    for case in SMALL:
        if case.group != group:
            continue
        data, outcome, started = case.make(), VALID, time.thread_time()
        try:
            found = bands.open_file(data, 3)
        except Refused as error:
            outcome, message = REFUSED, str(error)
            assert message.endswith(".") and "Error" not in message and "\n" not in message, case.name
        else:
            image = found.image if isinstance(found, bands.Bands) else found
            assert image.mode == "RGB" and image.width * image.height <= limits.WORK_PIXELS * 1.01, case.name
        assert case.expected in (EITHER, outcome), case.name
        assert time.thread_time() - started < 2, case.name


def test_a_sample_of_the_files_in_the_sandbox() -> None:
    cases = SMALL[::75]
    groups = hostile.decode(cases)
    assert len(cases) > 15 and [failure for found in groups.values() for failure in found.failures] == []
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
    row, failures = hostile_checkpoints.load(every=40)
    assert failures == [] and row.passed
