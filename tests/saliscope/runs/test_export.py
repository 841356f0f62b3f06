"""Exports are opened by the tools that they are for, if those are installed, and by hand otherwise."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet as pq

from benchmarks.data_sets import decode
from saliscope.errors import Refused
from saliscope.runs import run
from saliscope.runs.export import export, heatmap, place, run_lengths
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.settings import Settings
from saliscope.runs.shards import open_run
from saliscope.zoo.model import Preparation
from tests.support import shapes

HOSTILE = 'café/<b> ‮x" ; rm.png'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Six images, one of which is missing and one of which could not be read, with the maps of an untrained network."""
    folder = tmp_path_factory.mktemp("export")
    model = shapes.trained(0.0, steps=0)
    (folder / "images" / "café").mkdir(parents=True)
    for k, (_, _, image) in enumerate(shapes.labeled_images(1, 0.0, 0)):
        image.resize((96, 64)).save(folder / "images" / f"{k}.png")
    Image.new("RGB", (50, 80), "red").save(folder / "images" / HOSTILE)
    (folder / "images" / "broken.png").write_text("no image")
    (folder / "images" / "gone.png").write_bytes((folder / "images" / "0.png").read_bytes())
    job = run.prepare(Settings(batch_size=4), str(folder / "images"), folder / "run", model=model)
    run.run(job, decode=decode, workers=0)
    (folder / "images" / "gone.png").unlink()
    found = FinishedRun(open_run(folder / "run"), decode)
    found.__dict__["model"] = model
    return found


def test_hugging_face_opens_it(finished, tmp_path):
    seen: list[tuple[int, int]] = []
    done = export(finished, "hf", tmp_path / "hf", progress=lambda *counts: seen.append(counts))
    assert (done.written, done.missing) == (4, 1) and seen[-1] == (6, 6)
    rows = pq.read_table(tmp_path / "hf" / "data" / "train-00000.parquet").to_pylist()
    assert [each["path"] for each in rows] == ["0.png", "1.png", "2.png", HOSTILE]
    assert Image.open(io.BytesIO(rows[0]["heatmap"]["bytes"])).size == (96, 64)
    datasets = pytest.importorskip("datasets")
    opened = datasets.load_dataset(str(tmp_path / "hf"), split="train", cache_dir=str(tmp_path / "cache"))
    assert opened[0]["image"].size == (96, 64) and opened[0]["heatmap"].mode == "L" and len(opened) == 4
    assert opened[0]["prediction"] in shapes.NAMES and opened[3]["path"] == HOSTILE


def test_coco_opens_it(finished, tmp_path):
    export(finished, "coco", tmp_path / "coco")
    content = json.loads((tmp_path / "coco" / "annotations.json").read_text("utf-8"))
    assert [each["name"] for each in content["categories"]] == shapes.NAMES
    for image in content["images"]:
        assert Image.open(tmp_path / "coco" / image["file_name"]).size == (image["width"], image["height"])
        assert Image.open(tmp_path / "coco" / image["heatmap"]).mode == "L"
    masks = dict[int, np.ndarray]()
    for each in content["annotations"]:
        (height, width), counts = each["segmentation"]["size"], each["segmentation"]["counts"]
        mask = (np.arange(len(counts)) % 2).repeat(counts).reshape(width, height).T
        masks[each["id"]], (rows, columns), (left, top, across, down) = mask, np.nonzero(mask), each["bbox"]
        assert mask.sum() == each["area"] and (rows.min(), columns.min()) == (top, left)
        assert (rows.max() - top + 1, columns.max() - left + 1) == (down, across)
    assert len(masks) == 4
    coco = pytest.importorskip("pycocotools.coco")
    opened = coco.COCO(str(tmp_path / "coco" / "annotations.json"))
    for each in opened.loadAnns(opened.getAnnIds()):
        assert (opened.annToMask(each) == masks[each["id"]]).all()


def test_fiftyone_opens_it(finished, tmp_path):
    export(finished, "fiftyone", tmp_path / "fo")
    samples = json.loads((tmp_path / "fo" / "samples.json").read_text("utf-8"))["samples"]
    assert len(samples) == 4 and samples[0]["prediction"]["label"] in shapes.NAMES
    for each in samples:
        assert Image.open(tmp_path / "fo" / each["filepath"]).format == "PNG"
        assert Image.open(tmp_path / "fo" / each["heatmap"]["map_path"]).mode == "L"
    importers = pytest.importorskip("fiftyone.utils.data.importers")
    importer = importers.LegacyFiftyOneDatasetImporter(str(tmp_path / "fo"))
    importer.setup()
    opened = list(importer)
    assert len(opened) == 4 and opened[0].prediction.confidence == pytest.approx(samples[0]["prediction"]["confidence"])
    assert Path(opened[0].heatmap.map_path).is_file() and Path(opened[0].filepath).is_file()


def test_a_heatmap_is_at_the_place_of_the_crop():
    """The crop of a 200 x 100 image is its middle square; the map has one high cell at its upper left."""
    preparation = Preparation(32, 32, (0.5,) * 3, (0.5,) * 3)
    found = heatmap(np.array([[1.0, 0.0], [0.0, 0.0]]), preparation, (200, 100))
    assert found.pixels.shape == (100, 200) and (found.low, found.high) == (0.0, 1.0)
    assert (found.pixels[:, :50] == 0).all() and (found.pixels[:, 150:] == 0).all()
    assert found.pixels[10, 55] == 255 and found.pixels[90, 145] == 0
    signed = heatmap(np.array([[1.0, -2.0], [0.0, 0.0]]), preparation, (200, 100))
    assert (signed.low, signed.high) == (-2.0, 2.0) and signed.pixels[10, 145] == 0 and signed.pixels[50, 0] == 128
    large = place(np.ones((2, 2)), (-0.5, -0.5, 1.5, 1.5), (10, 6))  # the network received a margin
    assert (large == 1).all()


def test_run_lengths_by_hand():
    assert run_lengths(np.array([[True, False], [True, True]])) == [0, 2, 1, 1]
    assert run_lengths(np.zeros((2, 2), dtype=bool)) == [4]


def test_failed_exports_leave_no_files(finished, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(Refused, match="not an empty folder"):
        export(finished, "hf", tmp_path / "full")
    gone = FinishedRun(finished.data, decode)
    gone.__dict__ |= {"model": finished.model, "_finder": None}
    for to in ("hf", "coco", "fiftyone"):
        with pytest.raises(Refused, match="None of the images"):
            export(gone, to, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
