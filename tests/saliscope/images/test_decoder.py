"""Decoder processes: the same results as in this process, and a crash or a slow file is one refused request.

The files of `make hostile` are opened or refused with a message; a sample of them in the sandbox ends no decoder.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.public import hostile
from benchmarks.public.files import images as hostile_images
from benchmarks.public.files.images import EITHER, REFUSED, VALID
from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, metadata, uploads
from saliscope.images.decoder import pool, protocol, worker
from tests.support.band_files import npy_file, tiff_file, values


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Decode in a process for all tests of this file."""
    pool.start()
    yield
    pool.stop()


def photo(kind: str = "JPEG", size: tuple[int, int] = (60, 40)) -> bytes:
    """An image of random colors, to be rotated by its orientation tag."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.effect_noise(size, 90).convert("RGB").save(file, kind, exif=exif)
    return file.getvalue()


def test_results_equal_those_of_this_process() -> None:
    for kind in uploads.FORMATS:
        data = photo(kind)
        expected = uploads.open_image(data)
        for found in (pool.open_image(data), pool.open_file(data, 3)):
            assert isinstance(found, Image.Image) and found.mode == "RGB" and found.size == expected.size
            assert found.tobytes() == expected.tobytes(), kind
    arrays = tiff_file(values("u2")), npy_file(values("f4"))
    for channels, requested, file in itertools.product([1, 3, 5], ["", "3,2,1", "9,9,9"], arrays):
        own, raw = (module.open_file(file, channels, requested=requested) for module in (bands, pool))
        assert isinstance(own, bands.Bands) and isinstance(raw, bands.Bands)
        np.testing.assert_array_equal(raw.values, own.values)
        assert raw.values.dtype == np.float32 and raw.values.flags.writeable
        assert (raw.choice, raw.note, raw.image.tobytes()) == (own.choice, own.note, own.image.tobytes())
    for data in (*map(photo, ("JPEG", "PNG", "TIFF", "GIF")), arrays[1]):
        assert pool.strip_metadata(data, 4) == metadata.strip_metadata(data, 4)
    for data in (*arrays, photo("TIFF")):
        shown, preview = (module.preview_image(data, 3, "2,1,3") for module in (pool, bands))
        assert shown.tobytes() == preview.convert("RGB").tobytes()
    assert pool.preview_image(arrays[0], 3, "2,1,3").tobytes() == bands.to_rgb(values("u2"), (2, 1, 3)).tobytes()
    assert pool.preview_image(photo("JPEG"), 3, "") is None


def test_refusals_are_those_of_this_process() -> None:
    files = b"", b"hello", photo()[:300], photo("PNG")[:80], b"\x93NUMPY\x01\x00", bytes(limits.FILE + 1)
    for data, channels in (*((file, 3) for file in files), (tiff_file(values("u2")), 4)):
        found = []
        for module in (bands, pool):
            with pytest.raises(Refused) as caught:
                module.open_file(data, channels)
            found.append(str(caught.value))
        assert found[0] == found[1]
    with pytest.raises(Refused, match="damaged"):
        pool.strip_metadata(photo("GIF")[:100], 3)
    assert pool.restarts() == 0


def test_a_process_is_replaced_after_some_files_and_ends_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_FILES", 2)
    one = pool.Pool(1)
    with ThreadPoolExecutor(4) as threads:  # requests wait for their turn
        found = [*threads.map(lambda _: one.call(photo(), task="image")[0]["size"], range(3))]
    assert found == [[40, 60]] * 3 and one.restarts == 0
    assert one.used[1] > 0 or sys.platform != "linux"
    (last,) = one.processes()
    one.call(photo(), task="image")
    assert one.processes() == [], "replaced after two files"
    one.prepare()
    (process,) = one.processes()
    one.close()
    for number in (last, process):
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_file_that_needs_too_much_memory_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "open_bands", lambda *_, **__: bytearray(1 << 60))
        header = {"task": "open", "channels": 3, "raw": False, "requested": ""}
        assert "needs more than 1024 MB of memory" in worker.respond(header, b"x")[0]["refused"]


BROKEN = [
    b"",
    b"\x01",
    struct.pack("<IQ", 2, 0) + b"[]",
    struct.pack("<IQ", 2, 0) + b"{",
    struct.pack("<IQ", 2, 9) + b"{}abc",
    struct.pack("<IQ", 1 << 31, 0),
    struct.pack("<IQ", 2, 1 << 62) + b"{}",
    struct.pack("<IQ", 5, 0) + b"\xff\xff\xff\xff\xff",
    struct.pack("<IQ", 60_000, 0) + b"[" * 60_000,
]
WRONG: list[dict[str, object]] = [
    {},
    {"size": None},
    {"size": [2, 2.0]},
    {"size": [-2, -2]},
    {"size": [3, 3]},
    {"size": [1 << 40, 1 << 40]},
    {"size": [2, 2], "shape": [1, 1]},
    {"size": [1, 1], "shape": [1, 1, 9], "choice": {"three": [1, 1, 1], "count": 1}},
    {"size": [1, 1], "shape": [1, 1, 2], "choice": {"three": [1, 1], "count": 1}},
    {"size": [1, 1], "shape": [1, 1, 2], "choice": {"three": [1, 1, 1], "count": "1"}},
    {"size": [1, 1], "shape": [1, 1, 2], "choice": ["three", "count"]},
]


def test_what_a_decoder_sends_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in BROKEN:
        with pytest.raises(protocol.Broken):
            protocol.read(io.BytesIO(text))
            pytest.fail(f"{text!r} is accepted")
    for answer in WRONG:
        monkeypatch.setattr(pool.Pool, "call", lambda *_, sent=answer, **__: (sent, bytes(11)))
        with pytest.raises(Refused):
            pool.open_file(b"x", 3)
            pytest.fail(f"{answer} is accepted")


# Hostile files

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
LARGE = re.compile(r"\b([78]\d{3}|1\d{4}|100,?000|4000, 4000)\b|(?<!10 )million|[89] of 10 m|zTXt|one strip used")
"""Parts of the names of files that take more than a moment; `make hostile` has them."""
SMALL = [case for case in hostile_images.cases() if not LARGE.search(case.name)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", sorted({case.group for case in SMALL}))
def test_files_are_opened_or_refused_with_a_message(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No code in a file runs: it would write a file here."""
    monkeypatch.chdir(tmp_path)
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
        assert time.thread_time() - started < 2 and not any(tmp_path.iterdir()), case.name


@linux
def test_a_sample_of_the_files_in_the_sandbox() -> None:
    cases = SMALL[::75]
    groups = hostile.decode(cases)
    assert len(cases) > 15 and [failure for found in groups.values() for failure in found.failures] == []
    assert all(row.passed for row in hostile.rows(groups))
