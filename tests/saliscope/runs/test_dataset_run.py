"""Runs: the rows contain the maps of the library, and are read in batches; damage is reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet as pq

import explainers
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import run, shards
from saliscope.runs.rows import SCHEMA, map_of
from saliscope.runs.settings import Settings
from saliscope.runs.shards import open_run
from saliscope.zoo import load_model
from tests.saliscope.runs.test_dataset_stores import explain, prepare, small_model

EXAMPLES = Path(__file__).parents[3] / "assets" / "examples"


@pytest.fixture(scope="module")
def model():
    return load_model("efficientnet_lite0")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a list of five images with labels, one damaged file, and one missing file."""
    folder = tmp_path_factory.mktemp("source")
    labels = {"dog": "German shepherd", "cat": "Egyptian cat", "goldfish": "goldfish, Carassius auratus", "alp": "970"}
    lines = ["path,label"]
    for path in (EXAMPLES / f"{name}.jpg" for name in ("alp", "cat", "dog", "goldfish", "macaw")):
        (folder / path.name).write_bytes(path.read_bytes())
        lines.append(f'{path.name},"{labels.get(path.stem, "no such class")}"')
    (folder / "broken.jpg").write_bytes((EXAMPLES / "dog.jpg").read_bytes()[:2000])
    (folder / "list.csv").write_text("\n".join([*lines, "broken.jpg,alp", "missing.jpg,alp"]), encoding="utf-8")
    return str(folder / "list.csv")


def rows_of(out: Path) -> dict[str, dict]:
    rows = shards.open_run(out).table.to_pylist()
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    return {row["path"]: {**row, "seconds": None} for row in rows}


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() < 2e-3 * expected.abs().max()


@pytest.fixture(scope="module")
def whole(source, model, tmp_path_factory) -> Path:
    """Return the folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    summary = explain(source, out, model)
    assert summary.counts == {"looked_at": 7, "images": 7, "unreadable": 2, "labeled": 4, "correct": 3}
    assert summary.new == 7
    return out


def test_few_images_need_no_processes():
    assert run.default_workers(run.FEW) == 0 < run.default_workers(run.FEW + 1) and run.default_workers(None)


def test_rows_match_the_library_and_the_network(whole, model):
    """Oracle: the library and the network, one image at a time."""
    rows = rows_of(whole)
    assert shards.open_run(whole).table.schema.equals(SCHEMA)
    for name in ("dog", "cat"):
        image, row = model.prepare(Image.open(EXAMPLES / f"{name}.jpg")), rows[f"{name}.jpg"]
        with torch.no_grad():
            scores = model.network(image)[0]
        best = scores.softmax(0).topk(5)
        assert [each["index"] for each in row["top5"]] == best.indices.tolist()
        assert [each["probability"] for each in row["top5"]] == pytest.approx(best.values.tolist(), rel=1e-4)
        assert row["prediction"] == row["target"] == model.labels[int(scores.argmax())]
        assert row["score"] == pytest.approx(float(scores.max()), rel=1e-4)
        assert_near(torch.from_numpy(map_of(row)), explainers.grad_cam(model.network, image)[0])
        assert {each["name"] for each in row["statistics"]} >= {"min", "max"}
    labels = {"dog": 235, "cat": 285, "goldfish": 1, "alp": 970, "macaw": None}
    assert {name: rows[f"{name}.jpg"]["label_index"] for name in labels} == labels
    assert rows["dog.jpg"]["correct"] and rows["cat.jpg"]["correct"] is False and rows["macaw.jpg"]["correct"] is None
    assert "damaged or truncated" in rows["broken.jpg"]["error"] and rows["broken.jpg"]["label"] == "alp"
    assert "File not found" in rows["missing.jpg"]["error"] and rows["missing.jpg"]["map"] is None
    assert rows["broken.jpg"]["sha256"] and rows["missing.jpg"]["sha256"] is None
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["settings"]["method"] == "grad_cam" and manifest["versions"]["torch"] == torch.__version__
    assert len(manifest["weights_sha256"]) == 64


@pytest.mark.slow
def test_worker_processes_compute_the_same_rows(whole, source, model, tmp_path):
    run.run(prepare(source, tmp_path, model), decode=open_image, workers=1)
    assert rows_of(tmp_path) == rows_of(whole)


def test_targets(source, model, tmp_path):
    for target, expected in (
        ("label", [235, 285, 1]), ("goldfish", [1, 1, 1]), ("7", [7, 7, 7]), ("predicted", [235, 282, 1]),
    ):  # fmt: skip
        explain(source, tmp_path / target, model, target=target)
        rows = rows_of(tmp_path / target)
        assert [rows[f"{name}.jpg"]["target_index"] for name in ("dog", "cat", "goldfish")] == expected
        assert rows["macaw.jpg"]["target_index"] == {"goldfish": 1, "7": 7}.get(target, 88), "no label: the prediction"
        image = model.prepare(Image.open(EXAMPLES / "cat.jpg"))
        found = torch.from_numpy(map_of(rows["cat.jpg"]))
        assert_near(found, explainers.grad_cam(model.network, image, expected[1])[0])


def test_where_selects_rows(source, model, tmp_path):
    summary = explain(source, tmp_path / "wrong", model, where="wrong")
    assert summary.counts == {"looked_at": 7, "images": 3, "unreadable": 2, "labeled": 4, "correct": 3}
    assert [*rows_of(tmp_path / "wrong")] == ["broken.jpg", "cat.jpg", "missing.jpg"]
    explain(source, tmp_path / "named", model, where="label=German shepherd")
    assert [*rows_of(tmp_path / "named")] == ["dog.jpg"]
    job = run.prepare(Settings(where="label=goldfish"), source, tmp_path / "limited", limit=1, model=model)
    assert [item.path for item in job.listing.items] == ["goldfish.jpg"], "the limit applies to images with the label"
    with pytest.raises(Refused, match="No image has the label 'zebra'"):
        explain(source, tmp_path / "none", model, where="label=zebra")
    for label, message in (("", "no image has one"), ("gadget", "none is: gadget")):
        (tmp_path / "list.csv").write_text(f"path,label\n{EXAMPLES / 'dog.jpg'},{label}\n", encoding="utf-8")
        for settings in ({"target": "label"}, {"where": "wrong"}):
            with pytest.raises(Refused, match=message):
                explain(str(tmp_path / "list.csv"), tmp_path / "none", model, **settings)
    assert not (tmp_path / "none").exists()


def test_invalid_settings_are_reported_before_any_work(source, model, tmp_path):
    for settings, message in (
        ({"method": "grad_camm"}, "Unknown method 'grad_camm'.*grad_cam"),
        ({"method": "feature_maps"}, "Unknown method|not a map"),
        ({"method": "saliency", "layer": "head"}, "explains the input"),
        ({"options": {"samples": 9}}, "grad_cam has no option 'samples'"),
        ({"method": "smooth_grad", "options": {"samples": -1}}, "samples"),
        ({"target": "shepherd"}, "not a class of efficientnet_lite0. Did you mean .*'German shepherd'"),
        ({"precision": "bf16"}, "grad_cam computes in float32"),
        ({"precision": "fp8"}, "Use auto, float32, bf16"),
        ({"where": "blue"}, "Use wrong, or label=NAME"),
        ({"batch_size": 0}, "at least 1"),
    ):
        with pytest.raises(Refused, match=message):
            explain(source, tmp_path / "out", model, **settings)
        assert not (tmp_path / "out").exists()


def test_maps_outside_the_float16_range_keep_their_values(tmp_path):
    (tmp_path / "images").mkdir()
    Image.effect_noise((32, 32), 90).convert("RGB").save(tmp_path / "images" / "a.png")
    small = small_model()
    image, weight = small.prepare(Image.open(tmp_path / "images" / "a.png")), small.network[4].weight.data.clone()
    for scale in (1e9, 1e3, 1e-9, 0.0):
        small.network[4].weight.data = weight * scale
        explain(str(tmp_path / "images"), tmp_path / f"{scale}", small, method="hires_cam", target="2")
        row, expected = rows_of(tmp_path / f"{scale}")["a.png"], explainers.hires_cam(small.network, image, 2)[0]
        assert (torch.from_numpy(map_of(row)) - expected).abs().max() <= 1e-3 * expected.abs().max()
        assert (row["map_scale"] == 1) == (scale in (0.0, 1e3))


def test_runs_without_a_format_are_resumed_and_newer_formats_are_refused(tmp_path, source):
    small, out = small_model(), tmp_path / "run"
    explain(source, out, small)
    expected, texts = rows_of(out), {name: (out / name).read_text() for name in ("settings.json", "manifest.json")}

    def change(text: str) -> None:
        for name, before in texts.items():
            assert before.count('"format": 1,') == 1
            (out / name).write_text(before.replace('"format": 1,', text))

    change("")  # as before formats had versions
    assert explain(source, out, small).new == 0 and rows_of(out) == expected
    (out / "manifest.json").unlink()
    assert explain(source, out, small).new == 7 and rows_of(out) == expected, "the commits are deleted at the end"
    for version in (2, "x"):
        change(f'"format": {json.dumps(version)},')
        with pytest.raises(Refused, match=f"has format {version!r}.*Install the version of Saliscope that wrote"):
            explain(source, out, small)
        with pytest.raises(Refused, match=f"has format {version!r}"):
            shards.open_run(out)
    (out / "settings.json").write_text("[]")
    with pytest.raises(Refused, match="is damaged"):
        explain(source, out, small)


def write_parts(folder: Path, sizes: tuple[int, ...], schema: pa.Schema = SCHEMA) -> Path:
    """Write a run of empty rows in files of these sizes; the path of a row is its index."""
    first, names = 0, []
    for number, size in enumerate(sizes):
        rows = [{"path": str(first + k), "error": "Not read."} for k in range(size)]
        names.append(f"part-{number:05d}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / names[-1])
        first += size
    manifest = {"settings": {}, "weights_sha256": "0", "parts": names}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_rows_are_read_in_batches_or_in_any_order(tmp_path):
    data = open_run(write_parts(tmp_path, (3, 0, 5, 2)))
    for size in (1, 3, 4, 100):
        batches = list(data.batches(["path"], size))
        assert all(len(table) <= size and table["path"][0].as_py() == str(first) for first, table in batches), size
        assert [int(path) for _, table in batches for path in table["path"].to_pylist()] == list(range(len(data)))
    assert data.take([9, 0, 4, 4, 2], ["path"])["path"].to_pylist() == ["9", "0", "4", "4", "2"]
    assert len(data.take([])) == 0 and data.take(np.array([7])).column_names == SCHEMA.names


@pytest.mark.parametrize("name", ["a b#%20é", "_run", "s3:x", "q?*[z]{0..1}", "year=2020"])
def test_runs_in_folders_with_unusual_names_are_read(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    write_parts(tmp_path / name, (2, 3))
    monkeypatch.chdir(tmp_path)
    for data in (open_run(tmp_path / name), open_run(name)):
        assert data.table.schema == SCHEMA and data.table["path"].to_pylist() == [*"01234"]
        assert data.take([4, 1], ["path"])["path"].to_pylist() == ["4", "1"]


def test_files_with_other_columns_are_converted_or_refused(tmp_path):
    write_parts(tmp_path, (2, 3))

    def write(label: object, kind: pa.DataType) -> None:
        schema = pa.schema([pa.field(f.name, kind if f.name == "label_index" else f.type) for f in SCHEMA])
        row = {"path": "x", "label_index": label}
        pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / "part-00001.parquet")

    write(7, pa.int64())
    assert open_run(tmp_path).columns(["label_index"])["label_index"].to_pylist() == [None, None, 7]
    write("cat", pa.string())
    with pytest.raises(Refused, match="is damaged"):
        open_run(tmp_path).columns(["label_index"])
    bad = pa.schema([field for field in SCHEMA if field.name not in ("probability", "map")])
    with pytest.raises(Refused, match=r"part-00000.parquet of .* has no column probability, map\."):
        open_run(write_parts(tmp_path, (2,), bad))


def test_damaged_and_missing_files_are_reported(tmp_path):
    part = write_parts(tmp_path, (3, 3)) / "part-00001.parquet"
    for damage in (lambda: part.write_bytes(part.read_bytes()[:-9]), lambda: part.write_bytes(b"PAR1"), part.unlink):
        damage()
        with pytest.raises(Refused, match="is damaged"):
            open_run(tmp_path)
    for content in ("[]", "null", '{"parts": 3}', '{"parts": []}', "{}"):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(Refused, match="is damaged: manifest.json has no"):
            open_run(tmp_path)
