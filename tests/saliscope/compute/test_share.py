"""Addresses, images without metadata, and bundles that are recomputed."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, PngImagePlugin, TiffImagePlugin
from torch import nn

from saliscope import zoo
from saliscope.__main__ import main
from saliscope.compute import engine, model_cache
from saliscope.compute.bundles import bundle, links, messages, reading, record
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import examples, metadata, uploads
from saliscope.page.batch import finished_runs
from saliscope.page.components import view
from saliscope.runs import run as dataset_runs
from saliscope.runs.settings import Settings as RunSettings
from saliscope.zoo import devices
from tests.saliscope.compute.asking import CAT, MODEL, answered, forget_networks
from tests.support.band_files import npy_file
from tests.support.catalog import isolate_catalog
from tests.support.pretended_device import pretended_devices

WHERE = "48 deg 51 min N, taken by Ann"

pytestmark = [pytest.mark.usefixtures("loaded"), pytest.mark.filterwarnings("ignore:.*preprocessing")]


@pytest.fixture
def upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], str]:
    """Return a function that writes bytes to the upload folder of Gradio."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

    def put(data: bytes) -> str:
        (tmp_path / "holiday").write_bytes(data)
        return str(tmp_path / "holiday")

    return put


# Metadata


def exif(orientation: int = 1) -> bytes:
    found = Image.Exif()
    found[0x0112], found[0x010E] = orientation, WHERE
    found.get_ifd(0x8825)[1] = "N"
    return found.tobytes()


def saved(kind: str, **more: Any) -> bytes:
    Image.open(CAT).convert("RGB").resize((90, 60)).save(file := io.BytesIO(), kind, **more)
    return file.getvalue()


def files() -> Iterator[tuple[str, bytes, str, bool]]:
    """Yield name, bytes, suffix of the stripped file, and whether the compressed pixels are unchanged."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()  # not an RGB profile, so it is ignored
    comment = {"comment": WHERE.encode(), "icc_profile": profile}
    yield "jpeg", saved("JPEG", exif=exif(), **comment) + b"MPF" + WHERE.encode(), ".jpg", True
    yield "rotated", saved("JPEG", exif=exif(6), progressive=True, quality=95), ".jpg", True
    yield "restarts", saved("JPEG", exif=exif(), restart_marker_rows=1, subsampling=2), ".jpg", True
    words = PngImagePlugin.PngInfo()
    words.add_text("Location", WHERE)
    words.add_itxt("XML:com.adobe.xmp", f"<x>{WHERE}</x>", zip=False)
    yield "png", saved("PNG", pnginfo=words, exif=exif()), ".png", True
    yield "png rotated", saved("PNG", exif=exif(3)), ".png", False
    yield "webp", saved("WEBP", exif=exif(), xmp=WHERE.encode(), lossless=True), ".webp", True
    yield "gif", saved("GIF", comment=WHERE.encode()), ".png", False
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[270] = WHERE
    yield "tiff", saved("TIFF", tiffinfo=tags), ".png", False


def test_metadata_is_removed_and_pixels_are_unchanged() -> None:
    """Oracle: the decoded pixels of both files, and the text in the metadata."""
    for name, data, suffix, same in files():
        plain = metadata.strip_metadata(data, 3)
        one, other = uploads.open_image(data), uploads.open_image(plain.data)

        assert WHERE.encode() in data or "rotated" in name or name == "restarts"
        assert WHERE.encode() not in plain.data and b"GPS" not in plain.data, name
        assert (plain.suffix, plain.same_file) == (suffix, same), name
        assert one.size == other.size and one.tobytes() == other.tobytes(), name
        with Image.open(io.BytesIO(plain.data)) as opened:
            assert set(opened.getexif()) <= {0x0112} and not opened.getexif().get_ifd(0x8825), name
            assert "comment" not in opened.info, name


def test_a_multispectral_image_is_stored_as_its_values() -> None:
    values = np.arange(5 * 8 * 9, dtype="u2").reshape(5, 8, 9)
    file = npy_file(values)
    with_tags = io.BytesIO()
    pages = [Image.fromarray(band) for band in values]
    pages[0].save(with_tags, "TIFF", save_all=True, append_images=pages[1:], description=WHERE)

    assert metadata.strip_metadata(file, 5).data == file
    stripped = metadata.strip_metadata(with_tags.getvalue(), 5)
    assert stripped.suffix == ".npy" and WHERE.encode() not in stripped.data
    np.testing.assert_array_equal(np.load(io.BytesIO(stripped.data)), values)


# Bundles

Files = dict[str, bytes]
Made = Callable[..., Files]


@pytest.fixture
def made(upload: Callable[[bytes], str], tmp_path: Path) -> Made:
    """Return a function that makes the files of a bundle for a question, as page/share/bundle.js does."""

    def files_of(**question: Any) -> Files:
        image = upload(saved("JPEG", exif=exif(), quality=90))
        answer = view.answer(answered(Request(image, **{"model": MODEL, **question})), 1)
        part = bundle.server_part([answer["record"]], image, tmp_path)
        stripped = Path(part.pop("upload")).read_bytes()
        values = np.frombuffer(base64.b64decode(answer["map"]["b64"]), "<f4")
        values = values.reshape(answer["map"]["h"], answer["map"]["w"])
        about = part | {"maps": [{"files": {"map": "map.npy", "figure": "figure.png"}, **answer["record"]}]}
        entries = {"bundle.json": json.dumps(about).encode(), part["photograph"]["file"]: stripped}
        return entries | {"map.npy": npy_file(values), "figure.png": b""}

    return files_of


def packed(path: Path, entries: Files, **more: Any) -> Path:
    with zipfile.ZipFile(path, "w", **more) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


Replay = Callable[..., tuple[int, str]]


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Return a function that replays a file, or the files of a bundle; it returns the exit code and the output."""

    def run(given: Files | Path, *options: str) -> tuple[int, str]:
        path = given if isinstance(given, Path) else packed(tmp_path / "b.zip", given)
        with pytest.raises(SystemExit) as ended:
            main(["replay", str(path), *options])
        return int(ended.value.code or 0), "".join(capsys.readouterr())  # errors are the last line

    return run


def test_a_bundle_is_recomputed(made: Made, replay: Replay) -> None:
    for question in (
        {"method": "smooth_grad", "options": {"samples": 2, "seed": 7}},
        {"method": "hires_cam", "layer": "stages.4", "target": "channel 12 of head"},
        {"method": "token_pca", "plane": 2},
    ):
        entries = made(**question)
        code, output = replay(entries)
        assert code == 0 and "equal" in output and output.count("hash matches") == 2, output
        assert WHERE.encode() not in entries["photograph.jpg"]
        index = json.loads(entries["bundle.json"])
        assert index["maps"][0]["seed"] == question.get("options", {}).get("seed")
        assert {"saliscope", "torch", "python"} <= index["versions"].keys()
    code, output = replay(entries, "--format", "json")
    found = json.loads(output)
    assert code == 0 and list(found) == ["equal", "lines"] and found["equal"] and "equal" in found["lines"][-1]


def test_a_changed_bundle_is_reported(made: Made, replay: Replay) -> None:
    """Another option, other weights, other values, or another image. Values are equal within rounding."""
    entries = made(method="grad_cam", layer="stages.4", target="goldfish", options={"relu": False})

    def index(change: Callable[[Any], object]) -> Files:
        found = json.loads(entries["bundle.json"])
        change(found)
        return {"bundle.json": json.dumps(found).encode()}

    def values(factor: Any) -> Files:
        return {"map.npy": npy_file(np.load(io.BytesIO(entries["map.npy"])) * factor)}

    for change, words in (
        (index(lambda found: found["maps"][0]["question"]["options"].update(relu=True)), [": different"]),
        (index(lambda found: found["weights"][MODEL].update(sha256="0" * 64)), ["hash mismatch", "equal"]),
        (values(np.float32(1.01)), ["the stored map was modified", "different"]),
        (values(np.float32(1 + 1e-5)), ["the stored map was modified", "equal"]),
        (values(np.float32("nan")), ["the stored map was modified", "different"]),
        ({"photograph.jpg": saved("JPEG", quality=40)}, ["not the image that was explained"]),
    ):
        code, output = replay(entries | change)
        assert code == 1 and all(word in output for word in words), output


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_a_bundle_is_recomputed_on_another_device(made: Made, replay: Replay, tmp_path: Path, monkeypatch: Any) -> None:
    isolate_catalog(monkeypatch, tmp_path)
    entries = made(model=zoo.add(f"{__name__}:tiny", size=32), method="grad_cam")
    forget_networks()
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "lazy:1"])
    code, output = replay(entries, "--device", "cuda:7")
    assert code == 1 and "'cuda:7' is not available. Available: cpu, lazy:1." in output
    try:
        with pretended_devices():
            code, output = replay(entries, "--device", "lazy:1")
    finally:
        model_cache.use_device("auto")
    assert code == 0 and "Device      cpu then, lazy:1 now" in output and "equal" in output, output


def test_a_bundle_of_another_image_is_refused(upload: Callable[[bytes], str], tmp_path: Path) -> None:
    """The image was changed after the answer, or is not an upload; or the records are not those of an answer."""
    image = upload(saved("JPEG"))
    good = [view.answer(answered(Request(image, model=MODEL)), 1)["record"]]
    bundle.server_part(good, image, tmp_path)
    for records in (None, [], [None], [{"question": "x"}], good * 5):
        with pytest.raises(Refused):
            bundle.server_part(records, image, tmp_path)
    Path(image).write_bytes(saved("JPEG", quality=30))
    for given in (image, "/etc/passwd", None):
        with pytest.raises(Refused):
            bundle.server_part(good, given, tmp_path)


def index(question: Any = None, **more: Any) -> dict[str, Any]:
    """Return the index of a bundle in which something is changed."""
    usual = {"model": MODEL, "layer": "head", "class": "tabby", "method": "grad_cam", "options": {}}
    entry = {"files": {"map": "map.npy"}, "sha256": "", "question": usual | (question or {})}
    image = {"file": "photograph.jpg", "sha256": ""}
    return {"format": record.FORMAT, "version": 1, "photograph": image, "maps": [entry], **more}


def lying(path: Path) -> Path:
    """Return a zip archive whose entry declares a smaller size than it has, which is too large."""
    packed(path, {"bundle.json": bytes(reading.TEXT + 1)}, compression=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    for start, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        position = data.rfind(start) + at
        data[position : position + 4] = struct.pack("<I", 1000)
    path.write_bytes(bytes(data))
    return path


def malicious(folder: Path) -> Iterator[Files | Path]:
    sure = {"bundle.json": json.dumps(index()).encode(), "photograph.jpg": saved("JPEG")}
    sure |= {"map.npy": npy_file(np.zeros((7, 7), "f4"))}
    (folder / "half.zip").write_bytes(packed(folder / "whole.zip", sure).read_bytes()[:900])
    (folder / "no.zip").write_bytes(b"no zip at all")
    bomb = packed(folder / "c.zip", {**sure, "map.npy": bytes(reading.MAP + 1)}, compression=zipfile.ZIP_DEFLATED)
    yield from (folder / "half.zip", folder / "no.zip", folder / "missing.zip", folder, bomb, lying(folder / "d.zip"))
    for name in ("../../etc/passwd", "/etc/passwd", "..\\x", "C:\\x", "a/../../b"):
        yield {**sure, name: b"x"}
    yield {"readme.txt": b"hello"}
    yield {**sure, **{f"{k}.txt": b"" for k in range(100)}}
    yield {**sure, "map.npy": npy_file(np.array([{"a": print}], dtype=object), allow_pickle=True)}
    yield {**sure, "photograph.jpg": b"<svg onload=alert(1)>"}
    (entry,) = index()["maps"]
    maps: tuple[Any, ...] = ([], [None], [entry] * 9, [{"files": 5}], [{**entry, "answer": {"share": 0.4}}])
    wrong = [index(maps=each) for each in maps] + [index(versions="x" * 9)]
    wrong += [index(photograph=image) for image in (None, {"file": "../x", "sha256": 1})]
    wrong += [index({"model": model}) for model in ("os:system", 5, "../../weights.pt", "hf:somebody/something")]
    questions: tuple[Any, ...] = ({"method": "<b>"}, {"class": "x" * 999}, {"layer": ["a"]}, {"options": [1]})
    wrong += [index(question) for question in (*questions, {"options": {"rulo": 1}})]
    for text in ("", "[]", "{", "[" * 100_000, '{"format": 1}', *map(json.dumps, wrong)):
        yield {**sure, "bundle.json": text.encode()}


def test_a_malicious_file_gets_a_short_message(tmp_path: Path, replay: Replay) -> None:
    for given in malicious(tmp_path):
        code, output = replay(given)
        *before, last = output.splitlines()
        assert code == 1 and last.endswith(".") and 20 < len(last) < 420, (given, output)
        assert all(line.startswith(("Image", "Recomputing", "Weights", "Map")) for line in before), (given, output)
        assert "Traceback" not in output and "internal error" not in output, (given, output)
    assert not (tmp_path.parent / "x").exists()
    for version, expected in ((2, messages.OTHER_VERSION), (0, messages.NO_BUNDLE), (None, messages.NO_BUNDLE)):
        assert replay({"bundle.json": json.dumps(index(version=version)).encode()}) == (1, f"{expected}\n")


# Addresses


def test_the_parameters_of_settings_reproduce_them() -> None:
    """Defaults are not part of the address."""
    question = Request(CAT, MODEL, "stages.4", "goldfish", "occlusion", {"window": 112, "precision": "bf16"})
    found = links.state(engine.resolve(question))
    assert links.read({"example": "cat", **found}) == (question, examples.all_examples()["cat"], [])
    default = engine.resolve(Request(CAT, MODEL, method="grad_cam", options={"relu": True}))
    assert links.state(default)["options"] == ""


def test_images_of_a_run_are_opened_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only images of the run that the app was started with are opened, as a copy in the upload folder."""
    source = tmp_path / "images"
    source.mkdir()
    cat, dog = saved("JPEG"), saved("PNG")
    (source / "cat.jpg").write_bytes(cat)
    (source / "dog.png").write_bytes(dog)
    model = zoo.load_model(f"{__name__}:tiny", size=32)
    job = dataset_runs.prepare(RunSettings(), str(source), tmp_path / "run", model=model)
    dataset_runs.run(job, decode=uploads.open_image, workers=0)
    of_cat, of_dog = (hashlib.sha256(data).hexdigest() for data in (cat, dog))
    monkeypatch.delenv(finished_runs.FOLDER, raising=False)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))

    query = {"example": of_cat}
    assert links.read(query) == (Request(None), None, [])
    assert "start the app with its run" in links.missing(query, Request(None))
    monkeypatch.setenv(finished_runs.FOLDER, str(tmp_path / "run"))
    image = str(links.read(query)[0].image)
    assert Path(image).read_bytes() == cat and uploads.inside_uploads(image)
    (source / "dog.png").write_bytes(cat)
    for digest in (of_dog, "0" * 64, "../" + "0" * 61, of_cat.upper()):
        assert finished_runs.find(digest) is None, "a changed image, an image without a run, and invalid digests"


def test_an_uploaded_image_is_not_part_of_the_address(upload: Callable[[bytes], str]) -> None:
    """The address has a name that only the user's browser can resolve, which sends the file as an upload."""
    image = upload(saved("JPEG"))
    address, shared = {"own": "4fk2", "example": "cat"}, {"own": "shared"}
    assert links.read(address, {"file": image})[:2] == (Request(image), None)
    for stored in (None, {"file": None}, {"file": "/etc/passwd"}, {"file": 5}, "x"):
        asked, example, notes = links.read(address, stored)
        assert (asked.image, example, notes) == (None, None, []) and links.missing(address, asked) == messages.GONE
    assert links.missing(shared, Request(None)) == messages.SHARED and not links.missing({}, Request(None))
    assert links.read({"example": "none"})[:2] == (Request(None), None)


def test_an_unreadable_link_gives_the_default_request_and_a_note() -> None:
    texts = ("{", "[" * 1999, "[1]", json.dumps({"x": "y" * 2000}))
    for left_out, text in (("layer", "x" * 501), *(("options", text) for text in texts)):
        request, _, (note,) = links.read({left_out: text})
        assert getattr(request, left_out) == getattr(Request(), left_out), text
        assert f"The link is damaged: {left_out} cannot be read" in note, text
    first = next(iter(examples.all_examples().values()))
    for query, words in (({"example": "unicorn"}, "unicorn"), ({"example": "cat", "v": "2"}, "later version")):
        request, example, (note,) = links.read(query)
        assert (example, request.image) == (first, str(first.path)) and words in note
    assert links.read({"example": "cat"}) == links.read({"example": "cat", "v": "1"})
    assert links.parse_query("class=jack-o%27-lantern&options=%7B%7D") == {"class": "jack-o'-lantern", "options": "{}"}
    for wrong in (5, {"a": "b"}, "a=b" * 9000):
        assert links.parse_query(wrong) == {}
    assert links.parse_query("%ff=%fe&x=<b>")["x"] == "<b>"
