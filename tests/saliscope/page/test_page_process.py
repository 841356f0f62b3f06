"""No file of a visitor is decoded in the process of the page, whatever it is used for."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile

from saliscope.compute.bundles import bundle, links, record
from saliscope.compute.erase import engine as erase
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import Request
from saliscope.images import bands, examples, metadata, npy, tiff, uploads
from saliscope.images.decoder import pool
from saliscope.page.api import answers
from saliscope.page.batch import engine as batch
from saliscope.page.batch import finished_runs
from saliscope.page.components.view import floats
from saliscope.page.panel import settings as panel
from saliscope.runs import run as dataset_runs
from saliscope.runs.settings import Settings as RunSettings
from tests.saliscope.compute import asking
from tests.support.band_files import npy_file, tiff_file, values

EXAMPLES = {name: examples.all_examples()[name].path for name in ("dog", "cat", "coffee")}


@pytest.fixture(scope="module", autouse=True)
def page(loaded: Any) -> Iterator[None]:
    """The first network and the decoders, as `build.serve` starts them."""
    pool.start()
    yield
    pool.stop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of uploads; opening any file but the examples of the project fails from now on."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    plain = Image.open

    def open_own(file: Any, *arguments: Any, **keywords: Any) -> Any:
        assert isinstance(file, (str, os.PathLike)) and Path(file).is_relative_to(examples.ASSETS), "decoded here"
        return plain(file, *arguments, **keywords)

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("decoded here")

    monkeypatch.setattr(Image, "open", open_own)
    monkeypatch.setattr(ImageFile, "Parser", fail)
    for module, name in ((npy, "read"), (tiff, "pages"), (uploads, "open_image"), (metadata, "strip_metadata")):
        monkeypatch.setattr(module, name, fail)
    for name in ("open_bands", "open_file", "preview_image", "read"):
        monkeypatch.setattr(bands, name, fail)
    return tmp_path


def put(folder: Path, name: str, data: bytes | None = None) -> str:
    """Store an upload and return its path."""
    place = folder / f"hash-{name}"
    place.mkdir()
    (place / name).write_bytes(EXAMPLES[name.partition(".")[0]].read_bytes() if data is None else data)
    return str(place / name)


def test_images_bands_and_previews(folder: Path) -> None:
    deep = put(folder, "a.tif", tiff_file(values("u2"))), put(folder, "a.npy", npy_file(values("f4")))
    for path in (put(folder, "dog.jpg"), *deep):
        assert answers.explain({"path": path})["predictions"] and answers.feature_maps({"path": path})  # type: ignore[arg-type]
        shown = panel.preview(Request(path))
        assert [image["src"].startswith("data:image/jpeg") for image in shown.values()] == [True] * (path in deep)


def test_bundles_and_second_images(folder: Path) -> None:
    dog, coffee, into = put(folder, "dog.jpg"), put(folder, "coffee.jpg"), folder / "bundle"
    into.mkdir()
    edited = Request(dog, edit="brush.5k.FFFFWWWW_fill.image", second=coffee)
    after = [step for step in erase.answers(edited, "", Run(60.0)) if isinstance(step, erase.Erased)][-1].after
    found = bundle.server_part([record.record(after, floats(after.map))], dog, into, coffee)
    assert Path(found["upload"]).suffix == ".jpg" and Path(found["second_upload"]).suffix == ".jpg"


def test_batches_and_images_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, loaded: Any) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(EXAMPLES["cat"], "tabby/cat.jpg")
    files = [(put(folder, "dog.jpg"), "dog.jpg"), (str(folder / "a.zip"), "a.zip")]
    *_, report = batch.explain(Request(method="hires_cam"), files, Run(60.0))
    assert isinstance(report, batch.Report) and report.message.startswith("2 images explained")

    source = folder / "source"
    source.mkdir()
    shutil.copy(EXAMPLES["cat"], source)
    job = dataset_runs.prepare(RunSettings(), str(source), folder / "run", model=loaded.model)
    dataset_runs.run(job, decode=pool.open_image, workers=0)
    monkeypatch.setenv(finished_runs.FOLDER, str(folder / "run"))
    (request, _, notes) = links.read({"example": hashlib.sha256(EXAMPLES["cat"].read_bytes()).hexdigest()})
    assert notes == [] and asking.answered(request).map is not None
