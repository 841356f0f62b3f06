"""Decoder processes: the same results as in this process, and a crash or a slow file is one refused request."""

from __future__ import annotations

import io
import itertools
import os
import signal
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np
import pytest
from PIL import Image

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


def message(data: bytes, channels: int = 3) -> str:
    with pytest.raises(Refused) as caught:
        pool.open_file(data, channels)
    return str(caught.value)


def test_images_equal_those_of_this_process() -> None:
    for kind in uploads.FORMATS:
        data = photo(kind)
        expected = uploads.open_image(data)
        for found in (pool.open_image(data), pool.open_file(data, 3)):
            assert isinstance(found, Image.Image) and found.mode == "RGB" and found.size == expected.size
            assert found.tobytes() == expected.tobytes(), kind


def test_bands_equal_those_of_this_process() -> None:
    data = [tiff_file(values("u2")), npy_file(values("f4"))]
    for channels, requested, file in itertools.product([1, 3, 5], ["", "3,2,1", "9,9,9"], data):
        expected = bands.open_bands(file, channels, requested=requested)
        found = pool.open_file(file, channels, requested=requested)
        assert isinstance(found, bands.Bands) and expected is not None
        np.testing.assert_array_equal(found.values, expected.values)
        assert found.values.dtype == np.float32 and found.values.flags.writeable
        assert (found.choice, found.note) == (expected.choice, expected.note)
        assert found.image.tobytes() == expected.image.tobytes()


def test_files_without_metadata_equal_those_of_this_process() -> None:
    for data in (*map(photo, ("JPEG", "PNG", "TIFF", "GIF")), npy_file(values("f4"))):
        assert pool.strip_metadata(data, 4) == metadata.strip_metadata(data, 4)
    with pytest.raises(Refused, match="damaged"):
        pool.strip_metadata(photo("GIF")[:100], 3)


def test_previews_equal_those_of_this_process() -> None:
    for data in (tiff_file(values("u2")), npy_file(values("f4")), photo("TIFF")):
        found, expected = pool.preview_image(data, 3, "2,1,3"), bands.preview_image(data, 3, "2,1,3")
        assert found is not None and expected is not None
        assert found[1] == expected[1] and found[0].tobytes() == expected[0].convert("RGB").tobytes()
    assert pool.preview_image(photo("JPEG"), 3, "") is None


def test_refusals_are_those_of_this_process() -> None:
    for data in (b"", b"hello", photo()[:300], photo("PNG")[:80], b"\x93NUMPY\x01\x00", bytes(limits.FILE + 1)):
        with pytest.raises(Refused) as expected:
            uploads.open_image(data) if bands.open_bands(data, 3) is None else None
        assert message(data) == str(expected.value)
    assert "needs 4 bands" in message(tiff_file(values("u2")), 4)
    assert pool.restarts() == 0


def test_a_crash_of_the_decoder_is_one_refused_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ended while it reads the file, as a fault in a decoder would."""
    one, write = pool.Pool(1), protocol.write
    one.prepare()
    (process,) = one.processes()

    def write_and_end(requests: IO[bytes], header: dict[str, Any], data: bytes) -> None:
        message = io.BytesIO()
        write(message, header, data)
        requests.write(message.getvalue()[:-1])  # or it may answer before it is ended
        requests.flush()
        os.kill(process, signal.SIGSEGV)

    with monkeypatch.context() as patch, pytest.raises(Refused, match="could not be decoded"):
        patch.setattr(protocol, "write", write_and_end)
        one.call(photo(), task="image")
    assert one.restarts == 1 and one.processes() == []
    assert one.call(photo(), task="image")[0] == {"size": [40, 60]} and one.restarts == 1

    one._idle[0].process.kill()  # while it is idle
    one._idle[0].process.wait()
    assert one.call(photo(), task="image")[0] == {"size": [40, 60]} and one.restarts == 2
    one.close()


def test_a_decoder_that_takes_too_long_is_replaced() -> None:
    one = pool.Pool(1, seconds=0.01)
    with pytest.raises(Refused, match="takes too long"):
        one.call(photo(), task="image")  # a process does not even start in this time
    assert one.restarts == 1
    one.close()


def test_all_processes_end_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_FILES", 2)
    one = pool.Pool(1)
    one.prepare()
    first = one.processes()
    for _ in range(2):
        one.call(photo(), task="image")
        assert one.used[1] > 0 or sys.platform != "linux"
    assert one.processes() == [] and one.restarts == 0, "replaced after two files"
    one.call(photo(), task="image")
    assert first != one.processes()
    process = one._idle[0].process
    one.close()
    assert process.poll() is not None


def test_a_waiting_request_gets_its_turn() -> None:
    one = pool.Pool(1)
    with ThreadPoolExecutor(6) as threads:
        found = threads.map(lambda _: one.call(photo(), task="image")[0]["size"][0], range(6))
        assert [*found] == [40] * 6 and len(one.processes()) == 1
    one.close()


def test_a_file_that_needs_too_much_memory_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "open_bands", lambda *_, **__: bytearray(1 << 60))
        header = {"task": "open", "channels": 3, "raw": False, "requested": ""}
        assert "needs more than 1024 MB of memory" in worker.respond(header, b"x")[0]["refused"]


BROKEN = [
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


def test_what_a_decoder_sends_is_not_trusted() -> None:
    for text in BROKEN:
        with pytest.raises(protocol.Broken):
            protocol.read(io.BytesIO(text))
            pytest.fail(f"{text!r} is accepted")
    assert protocol.read(io.BytesIO()) is None
    for answer in WRONG:
        with pytest.raises(Refused):
            pool._unpack(answer, bytearray(11))
            pytest.fail(f"{answer} is accepted")
