"""Runs: the rows contain the maps of the library, and an interrupted run ends with the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import explainers
from saliscope.datasets import run, shards
from saliscope.datasets.explaining import _to_float16
from saliscope.datasets.rows import SCHEMA, map_of
from saliscope.datasets.settings import Settings
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.zoo import load_model

EXAMPLES = Path(__file__).parents[3] / "assets" / "examples"
SMALL = {"batch_size": 2, "shard": 4}


@pytest.fixture(scope="module")
def model():
    return load_model("efficientnet_lite0")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a list of nine images with labels, one damaged file, and one missing file."""
    folder = tmp_path_factory.mktemp("source")
    labels = {"dog": "German shepherd", "cat": "Egyptian cat", "goldfish": "goldfish, Carassius auratus", "alp": "970"}
    lines = ["path,label"]
    for path in sorted(EXAMPLES.glob("*.jpg")):
        (folder / path.name).write_bytes(path.read_bytes())
        lines.append(f'{path.name},"{labels.get(path.stem, "no such class")}"')
    (folder / "broken.jpg").write_bytes((EXAMPLES / "dog.jpg").read_bytes()[:2000])
    (folder / "list.csv").write_text("\n".join([*lines, "broken.jpg,alp", "missing.jpg,alp"]), encoding="utf-8")
    return str(folder / "list.csv")


def explain(source: str, out: Path, model, report=None, **settings) -> run.Summary:
    job = run.prepare(Settings(**{**SMALL, **settings}), source, out, model=model)
    return run.run(job, decode=open_image, workers=0, report=report)


def rows_of(out: Path) -> list[dict]:
    return [{**row, "seconds": None} for row in shards.open_run(out).table.to_pylist()]


@pytest.fixture(scope="module")
def whole(source, model, tmp_path_factory) -> Path:
    """Return the folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    summary = explain(source, out, model)
    assert summary.counts == {"looked_at": 11, "images": 11, "unreadable": 2, "labeled": 4, "correct": 3}
    assert summary.new == 11
    return out


def test_rows_match_the_library_and_the_network(whole, model):
    """Oracle: the library and the network, one image at a time."""
    rows = {row["path"]: row for row in rows_of(whole)}
    assert list(rows) == sorted(rows) and shards.open_run(whole).table.schema.equals(SCHEMA)
    for name in ("dog", "cat", "pair"):
        image = model.prepare(Image.open(EXAMPLES / f"{name}.jpg"))
        with torch.no_grad():
            scores = model.network(image)[0]
        found = explainers.grad_cam(model.network, image)[0]
        row = rows[f"{name}.jpg"]
        best = scores.softmax(0).topk(5)
        assert [each["index"] for each in row["top5"]] == best.indices.tolist()
        assert [each["probability"] for each in row["top5"]] == pytest.approx(best.values.tolist(), rel=1e-4)
        assert row["prediction"] == row["target"] == model.labels[int(scores.argmax())]
        assert row["score"] == pytest.approx(float(scores.max()), rel=1e-4)
        assert torch.from_numpy(map_of(row)).sub(found).abs().max() < 2e-3 * found.abs().max()
        assert {each["name"] for each in row["statistics"]} >= {"min", "max"}


def test_labels_and_errors_are_columns(whole):
    rows = {row["path"]: row for row in rows_of(whole)}
    labels = {"dog": 235, "cat": 285, "goldfish": 1, "alp": 970, "macaw": None}
    assert {name: rows[f"{name}.jpg"]["label_index"] for name in labels} == labels
    assert rows["dog.jpg"]["correct"] and rows["cat.jpg"]["correct"] is False and rows["macaw.jpg"]["correct"] is None
    assert "damaged or truncated" in rows["broken.jpg"]["error"] and rows["broken.jpg"]["label"] == "alp"
    assert "File not found" in rows["missing.jpg"]["error"] and rows["missing.jpg"]["map"] is None
    assert rows["broken.jpg"]["sha256"] and rows["missing.jpg"]["sha256"] is None


def test_manifest_is_written_last(whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["parts"] == [f"part-{k:05d}.parquet" for k in range(3)] and len(manifest["weights_sha256"]) == 64
    assert manifest["settings"]["method"] == "grad_cam" and manifest["versions"]["torch"] == torch.__version__
    assert sorted(path.name for path in whole.iterdir()) == ["manifest.json", *manifest["parts"], "settings.json"]
    assert max(whole.iterdir(), key=lambda path: path.stat().st_mtime_ns).name == "manifest.json"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", ["after every batch", pytest.param("while a file is written", marks=pytest.mark.slow)])
def test_killed_run_ends_with_the_same_rows(when, whole, source, model, tmp_path, monkeypatch):
    """No row is lost or repeated, and every column except the seconds is equal."""
    replace, kills = os.replace, 0

    def killed(*_: object) -> None:
        raise Killed

    def once(*arguments: str) -> None:
        monkeypatch.setattr(os, "replace", replace)  # one more file is written each time
        Path(arguments[0]).write_bytes(b"half")
        raise Killed

    def second(*arguments: str) -> None:
        replace(*arguments)
        monkeypatch.setattr(os, "replace", once)

    for _ in range(40):
        monkeypatch.setattr(os, "replace", replace if when == "after every batch" else second)
        try:
            explain(source, tmp_path, model, killed if when == "after every batch" else None)
            break
        except Killed:
            kills += 1
            with pytest.raises(Refused, match="is not finished|does not contain a run"):
                shards.open_run(tmp_path)
    assert kills >= 6 and rows_of(tmp_path) == rows_of(whole)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(each.name for each in whole.iterdir())
    assert explain(source, tmp_path, model).new == 0, "a finished run is not computed again"


@pytest.mark.slow
def test_worker_processes_compute_the_same_rows(whole, source, model, tmp_path):
    job = run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    run.run(job, decode=open_image, workers=1)
    assert rows_of(tmp_path) == rows_of(whole)


def test_run_is_written_by_one_process(source, model, tmp_path):
    """Another process tries to write the same run."""
    job = run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    code = (
        "import json, sys; from saliscope.datasets.shards import Shards; from saliscope.errors import Refused\n"
        "try: Shards(sys.argv[1], json.loads(sys.argv[2]))\nexcept Refused as refusal: print(refusal)"
    )
    other = [sys.executable, "-c", code, str(tmp_path), json.dumps(job.shards.record)]
    output = subprocess.run(other, cwd=EXAMPLES.parents[1], capture_output=True, text=True, timeout=120).stdout
    assert output.startswith("Another process is writing the run")
    assert run.run(job, decode=open_image, workers=0).new == 11
    run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "a finished run is only read"


def test_targets(source, model, tmp_path):
    for target, expected in (
        ("label", [235, 285, 1]), ("goldfish", [1, 1, 1]), ("7", [7, 7, 7]), ("predicted", [235, 282, 1]),
    ):  # fmt: skip
        explain(source, tmp_path / target, model, target=target)
        rows = {row["path"]: row for row in rows_of(tmp_path / target)}
        assert [rows[f"{name}.jpg"]["target_index"] for name in ("dog", "cat", "goldfish")] == expected
        assert rows["macaw.jpg"]["target_index"] == {"goldfish": 1, "7": 7}.get(target, 88), "no label: the prediction"
        image = model.prepare(Image.open(EXAMPLES / "cat.jpg"))
        found = explainers.grad_cam(model.network, image, expected[1])[0]
        assert torch.from_numpy(map_of(rows["cat.jpg"])).sub(found).abs().max() < 2e-3 * found.abs().max()


def test_where_selects_rows(source, model, tmp_path):
    summary = explain(source, tmp_path / "wrong", model, where="wrong")
    assert summary.counts == {"looked_at": 11, "images": 3, "unreadable": 2, "labeled": 4, "correct": 3}
    rows = rows_of(tmp_path / "wrong")
    assert [row["path"] for row in rows] == ["broken.jpg", "cat.jpg", "missing.jpg"]
    explain(source, tmp_path / "named", model, where="label=German shepherd")
    assert [row["path"] for row in rows_of(tmp_path / "named")] == ["dog.jpg"]
    job = run.prepare(Settings(where="label=goldfish"), source, tmp_path / "limited", limit=1, model=model)
    assert [item.path for item in job.items] == ["goldfish.jpg"], "the limit applies to images with the label"
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
        ({"target": "goldfihs"}, "Did you mean 'goldfish'"),
        ({"precision": "bf16"}, "grad_cam computes in float32"),
        ({"precision": "fp8"}, "Use auto, float32, bf16"),
        ({"where": "blue"}, "Use wrong, or label=NAME"),
        ({"batch_size": 0}, "at least 1"),
    ):
        with pytest.raises(Refused, match=message):
            explain(source, tmp_path / "out", model, **settings)
        assert not (tmp_path / "out").exists()


def test_maps_outside_the_float16_range_keep_their_values():
    maps = torch.tensor([[[3e7, -1e5]], [[2e-9, 1e-10]], [[0.0, 0.0]], [[1.5, 0.25]]])
    halves, scales = _to_float16(maps)
    assert (halves.float() * scales[:, None, None]).sub(maps).abs().le(1e-3 * maps.abs().amax(2, keepdim=True)).all()
    assert scales[2] == scales[3] == 1
