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
from PIL import Image, ImageCms, PngImagePlugin, TiffImagePlugin

from saliscope import zoo
from saliscope.__main__ import main
from saliscope.datasets import run as dataset_runs
from saliscope.datasets.settings import Settings as RunSettings
from saliscope.errors import Refused
from saliscope.images import examples, metadata, uploads
from saliscope.page.batch import finished_runs
from saliscope.page.components import view
from saliscope.session import engine, model_cache
from saliscope.session.bundles import bundle, links, messages, record, replay
from saliscope.session.request import Request
from saliscope.zoo import devices
from tests.saliscope.session.asking import MODEL, answered
from tests.support.band_files import npy_file
from tests.support.pretended_device import pretended_devices

CAT, DOG = (examples.all_examples()[name].path for name in ("cat", "dog"))
WHERE = "48 deg 51 min N, taken by Ann"


pytestmark = pytest.mark.usefixtures("loaded")


@pytest.fixture
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], str]:
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


def cat_image() -> Image.Image:
    return Image.open(CAT).convert("RGB").resize((90, 60))


def saved(kind: str, **more: Any) -> bytes:
    file = io.BytesIO()
    cat_image().save(file, kind, **more)
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


def made(uploaded: Callable[[bytes], str], tmp_path: Path, **question: Any) -> dict[str, bytes]:
    """Return the files of a bundle, assembled as in static/share/bundle.js."""
    image = uploaded(saved("JPEG", exif=exif(), quality=90))
    answer = view.answer(answered(Request(image, model=MODEL, **question)), 1)
    part = bundle.server_part([answer["record"]], image, tmp_path)
    stripped = Path(part.pop("upload")).read_bytes()
    values = np.frombuffer(base64.b64decode(answer["map"]["b64"]), "<f4")
    values = values.reshape(answer["map"]["h"], answer["map"]["w"])
    about = part | {"maps": [{"files": {"map": "map.npy", "figure": "figure.png"}, **answer["record"]}]}
    return {
        "bundle.json": json.dumps(about).encode(),
        part["photograph"]["file"]: stripped,
        "map.npy": npy_file(values),
        "figure.png": b"",
    }


def packed(path: Path, entries: dict[str, bytes], **more: Any) -> Path:
    with zipfile.ZipFile(path, "w", **more) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def changed(entries: dict[str, bytes], change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    index = json.loads(entries["bundle.json"])
    change(index)
    return {**entries, "bundle.json": json.dumps(index).encode()}


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(path), *options])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.mark.parametrize(
    "question",
    [
        {"method": "smooth_grad", "options": {"samples": 2, "seed": 7}},
        {"method": "hires_cam", "layer": "stages.4", "target": "channel 12 of head"},
        {"method": "token_pca", "plane": 2},
    ],
    ids=lambda question: question["method"],
)
def test_a_bundle_is_recomputed(
    uploaded: Callable[[bytes], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    question: dict[str, Any],
) -> None:
    entries = made(uploaded, tmp_path, **question)
    code, output = replayed(packed(tmp_path / "b.zip", entries), capsys)
    assert code == 0 and "equal" in output and output.count("hash matches") == 2, output
    assert WHERE.encode() not in entries["photograph.jpg"]
    entry = json.loads(entries["bundle.json"])["maps"][0]
    assert entry["seed"] == question.get("options", {}).get("seed", entry["question"]["options"].get("seed"))


def test_a_changed_bundle_is_reported(
    uploaded: Callable[[bytes], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another option, other weights, other values, or another image."""
    question = {"method": "grad_cam", "layer": "stages.4", "target": "goldfish", "options": {"relu": False}}
    entries = made(uploaded, tmp_path, **question)
    index = json.loads(entries["bundle.json"])
    assert {"saliscope", "torch", "python"} <= index["versions"].keys()
    larger = npy_file(np.load(io.BytesIO(entries["map.npy"])) * np.float32(1.01))
    for wrong, words in (
        (changed(entries, lambda found: found["maps"][0]["question"]["options"].update(relu=True)), [": different"]),
        (changed(entries, lambda found: found["weights"][MODEL].update(sha256="0" * 64)), ["hash mismatch", "equal"]),
        ({**entries, "map.npy": larger}, ["the stored map was modified", "different"]),
        ({**entries, "photograph.jpg": saved("JPEG", quality=40)}, ["not the image that was explained"]),
    ):
        code, output = replayed(packed(tmp_path / "b.zip", wrong), capsys)
        assert code == 1 and all(word in output for word in words), output


def test_a_bundle_is_recomputed_on_another_device(
    uploaded: Callable[[bytes], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "lazy:1"])
    monkeypatch.setattr(model_cache, "_device", "auto")  # restored at the end
    path = packed(tmp_path / "b.zip", made(uploaded, tmp_path, method="grad_cam", target="tabby"))
    code, output = replayed(path, capsys, "--device", "cuda:7")
    assert code == 1 and "'cuda:7' is not available. Available: cpu, lazy:1." in output

    monkeypatch.setattr(model_cache, "_loaded", {})  # as in a new process
    monkeypatch.setattr(model_cache, "start", lambda *_: None)
    with pretended_devices():
        code, output = replayed(path, capsys, "--device", "lazy:1")
    assert code == 0 and messages.device("cpu", "lazy:1") in output and "equal" in output, output


def test_a_bundle_of_another_image_is_refused(uploaded: Callable[[bytes], str], tmp_path: Path) -> None:
    """The image was changed after the answer, or is not an upload."""
    image = uploaded(saved("JPEG"))
    answer = view.answer(answered(Request(image, model=MODEL)), 1)
    Path(image).write_bytes(saved("JPEG", quality=30))

    for given in (image, "/etc/passwd", None):
        with pytest.raises(Refused):
            bundle.server_part([answer["record"]], given, tmp_path)
    for records in (None, [], [None], [{"question": "x"}], [answer["record"]] * 5):
        with pytest.raises(Refused):
            bundle.server_part(records, image, tmp_path)


def index(**more: Any) -> dict[str, Any]:
    question = {"model": MODEL, "layer": "head", "class": "tabby", "method": "grad_cam", "options": {}}
    entry = {"files": {"map": "map.npy"}, "sha256": "", "question": question}
    image_entry = {"file": "photograph.jpg", "sha256": ""}
    return {"format": record.FORMAT, "version": 1, "photograph": image_entry, "maps": [entry], **more}


def lying(path: Path) -> Path:
    """Return a zip archive whose entry declares a small size but has 300 MB of zeros."""
    packed(path, {"bundle.json": bytes(300_000_000)}, compression=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    for start, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        position = data.rfind(start) + at
        data[position : position + 4] = struct.pack("<I", 1000)
    path.write_bytes(bytes(data))
    return path


def malicious(folder: Path) -> Iterator[tuple[str, Path]]:
    rest = {"photograph.jpg": saved("JPEG"), "map.npy": npy_file(np.zeros((7, 7), "f4"))}
    sure = {"bundle.json": json.dumps(index()).encode(), **rest}
    (folder / "no.zip").write_bytes(b"no zip at all")
    yield "no zip", folder / "no.zip"
    yield "none", folder / "missing.zip"
    yield "a folder", folder
    (folder / "half.zip").write_bytes(packed(folder / "whole.zip", sure).read_bytes()[:900])
    yield "half", folder / "half.zip"
    for name in ("../../etc/passwd", "/etc/passwd", "..\\x", "C:\\x", "a/../../b"):
        yield name, packed(folder / f"{abs(hash(name))}.zip", {**sure, name: b"x"})
    yield "foreign", packed(folder / "foreign.zip", {"readme.txt": b"hello"})
    yield "bomb", packed(folder / "bomb.zip", {**sure, "map.npy": bytes(200_000_000)}, compression=zipfile.ZIP_DEFLATED)
    yield "lying bomb", lying(folder / "lying.zip")
    many = {**sure, **{f"{k}.txt": b"" for k in range(100)}}
    yield "many files", packed(folder / "many.zip", many)
    pickled = npy_file(np.array([{"a": print}], dtype=object), allow_pickle=True)
    yield "pickle", packed(folder / "pickle.zip", {**sure, "map.npy": pickled})
    yield "a page", packed(folder / "svg.zip", {**sure, "photograph.jpg": b"<svg onload=alert(1)>"})
    texts = ["", "[]", "null", "{", "[" * 100_000, '{"format": 1}', json.dumps(index(version=99))]
    wrong = [index(maps=[]), index(maps=[None]), index(maps=index()["maps"] * 9), index(photograph=None)]
    wrong += [index(photograph={"file": "../x", "sha256": 1}), index(versions="x" * 9), index(maps=[{"files": 5}])]
    questions = [
        {"model": "os:system"},
        {"model": 5},
        {"method": "<b>"},
        {"options": {"rulo": 1}},
        {"class": "x" * 999},
    ]
    questions += [{"layer": ["a"]}, {"options": [1]}, {"model": "../../weights.pt"}, {"model": "hf:somebody/something"}]
    for change in questions:
        entry = index()["maps"][0]
        wrong.append(index(maps=[{**entry, "question": {**entry["question"], **change}}]))
    wrong.append(index(maps=[{**index()["maps"][0], "answer": {"share": 0.4}}]))
    for k, text in enumerate([*texts, *map(json.dumps, wrong)]):
        yield text[:60], packed(folder / f"text{k}.zip", {**sure, "bundle.json": text.encode()})


def test_a_malicious_file_gets_a_short_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, path in malicious(tmp_path):
        code, output = replayed(path, capsys)

        *before, last = output.splitlines()
        assert code == 1 and last.endswith(".") and 20 < len(last) < 420, (name, output)
        assert all(line.startswith(("Image", "Recomputing", "Weights", "Map")) for line in before), (name, output)
        assert "Traceback" not in output and "internal error" not in output, (name, output)
    assert not (tmp_path.parent / "x").exists()


def test_a_bundle_of_a_later_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version, expected in ((2, messages.OTHER_VERSION), (0, messages.NO_BUNDLE), (None, messages.NO_BUNDLE)):
        file = packed(tmp_path / "b.zip", {"bundle.json": json.dumps(index(version=version)).encode()})
        assert replayed(file, capsys) == (1, f"{expected}\n")


def test_maps_are_equal_within_rounding_only() -> None:
    one = np.linspace(-1, 2, 49, dtype="f4").reshape(7, 7)
    gap = one.copy()
    gap[0, 0] = np.nan

    assert replay._difference(one, one * np.float32(1 + 1e-5))[0] <= replay.ROUNDING * 2
    assert replay._difference(one, one * np.float32(1.01))[0] > replay.ROUNDING * 2
    assert not replay._difference(one, gap)[2] and replay._difference(gap, gap) == (0.0, 2.0, True)


# Addresses


def test_the_parameters_of_settings_reproduce_them() -> None:
    """Defaults are not part of the address."""
    given = {"window": 112, "precision": "bf16"}
    question = Request(str(CAT), MODEL, "stages.4", "goldfish", "occlusion", given)
    found = links.state(engine.resolve(question))

    assert {name: found[name] for name in ("model", "layer", "class", "method")} == {
        "model": MODEL, "layer": "stages.4", "class": "goldfish", "method": "occlusion"
    }  # fmt: skip
    again, example, notes = links.read({"example": "cat", **found})
    assert (again, example, notes) == (question, examples.all_examples()["cat"], [])
    assert (
        links.state(engine.resolve(Request(str(CAT), MODEL, method="grad_cam", options={"relu": True})))["options"]
        == ""
    )


def test_images_of_a_run_are_opened_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only images of the run that the app was started with are opened, as a copy in the upload folder."""
    source = tmp_path / "images"
    source.mkdir()
    for path in (CAT, DOG):
        (source / path.name).write_bytes(path.read_bytes())
    model = zoo.load_model(MODEL)
    job = dataset_runs.prepare(RunSettings(), str(source), tmp_path / "run", model=model)
    dataset_runs.run(job, decode=uploads.open_image, workers=0)
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in (CAT, DOG)}
    monkeypatch.delenv(finished_runs.FOLDER, raising=False)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))

    asked = links.read({"example": digests[CAT], "method": "layer_cam"})
    assert asked == (Request(None, method="layer_cam"), None, [])
    assert "start the app with its run" in links.missing({"example": digests[CAT]}, asked[0])
    monkeypatch.setenv(finished_runs.FOLDER, str(tmp_path / "run"))
    (asked, example, notes) = links.read({"example": digests[CAT], "method": "layer_cam"})
    assert (asked.method, example, notes) == ("layer_cam", None, []) and not links.missing({}, asked)
    assert Path(str(asked.image)).read_bytes() == CAT.read_bytes()
    assert uploads.inside_uploads(str(asked.image))
    (source / DOG.name).write_bytes(CAT.read_bytes())
    for digest in (digests[DOG], "0" * 64, "../" + "0" * 61, digests[CAT].upper()):
        assert finished_runs.find(digest) is None, "a changed image, an image without a run, and invalid digests"


def test_an_uploaded_image_is_not_part_of_the_address(uploaded: Callable[[bytes], str]) -> None:
    """The address has a name that only the user's browser can resolve, which sends the file as an upload."""
    image = uploaded(saved("JPEG"))
    address = {"own": "4fk2", "example": "cat"}

    assert links.read(address, {"file": image})[:2] == (Request(image), None)
    for stored in (None, {}, {"file": None}, {"file": "/etc/passwd"}, {"file": 5}, "x"):
        asked, example, notes = links.read(address, stored)
        assert (asked.image, example, notes) == (None, None, []) and links.missing(address, asked) == messages.GONE
    shared = {"own": "shared"}
    assert links.missing(shared, links.read(shared, {"own": "shared", "file": None})[0]) == messages.SHARED
    assert not links.missing({}, Request(None))
    assert links.read({"example": "none"})[:2] == (Request(None), None)


def test_an_address_from_a_script_is_parsed_or_ignored() -> None:
    assert links.parse_query("class=jack-o%27-lantern&options=%7B%7D") == {"class": "jack-o'-lantern", "options": "{}"}
    for wrong in (None, 5, {"a": "b"}, "a=b" * 9000):
        assert links.parse_query(wrong) == {}
    assert links.parse_query("%ff=%fe&x=<b>")["x"] == "<b>"
