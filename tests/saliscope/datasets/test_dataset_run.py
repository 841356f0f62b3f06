"""Runs: the rows contain the maps of the library, and an interrupted run ends with the same rows."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet as pq

import explainers
from saliscope.datasets import run, shards
from saliscope.datasets.explaining import _to_float16
from saliscope.datasets.rows import SCHEMA, map_of
from saliscope.datasets.settings import Classes, Settings
from saliscope.datasets.shards.planning import Stamp
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


def test_labels_are_found_by_name_synonym_and_index(whole):
    rows = {row["path"]: row for row in rows_of(whole)}
    assert {name: rows[f"{name}.jpg"]["label_index"] for name in ("dog", "cat", "goldfish", "alp", "macaw")} == {
        "dog": 235, "cat": 285, "goldfish": 1, "alp": 970, "macaw": None,
    }  # fmt: skip
    assert rows["dog.jpg"]["correct"] and rows["cat.jpg"]["correct"] is False and rows["macaw.jpg"]["correct"] is None
    classes = Classes(["crane", "tabby, tabby cat", "crane"])
    imagenet = Classes(load_model("efficientnet_lite0").labels)
    assert [imagenet.find(wnid) for wnid in ("n01440764", "n02106662", "n15075141", "n00000000")] == [0, 235, 999, None]
    assert Classes(["a", "b"]).find("n01440764") is None
    assert classes.find("Tabby_Cat") == 1 and classes.find("2") == 2 and classes.find("3") is None
    assert classes.find("2.0") == 2 and classes.find("2.5") is None and classes.find("3.0") is None


def test_unreadable_images_have_rows_with_errors(whole):
    rows = {row["path"]: row for row in rows_of(whole)}
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


@pytest.mark.parametrize(
    "when",
    [
        "after every batch",
        pytest.param("before every file", marks=pytest.mark.slow),
        pytest.param("while a file is written", marks=pytest.mark.slow),
    ],
)
def test_killed_run_ends_with_the_same_rows(when, whole, source, model, tmp_path, monkeypatch):
    """No row is lost or repeated, and every column except the seconds is equal."""
    replace, kills, new = os.replace, 0, []

    def killed(*_: object) -> None:
        raise Killed

    def once(*arguments: str) -> None:
        monkeypatch.setattr(os, "replace", replace)  # one more file is written each time
        if when == "while a file is written":
            Path(arguments[0]).write_bytes(b"half")
        raise Killed

    def second(*arguments: str) -> None:
        replace(*arguments)
        monkeypatch.setattr(os, "replace", once)

    for _ in range(40):
        monkeypatch.setattr(os, "replace", replace if when == "after every batch" else second)
        try:
            new.append(explain(source, tmp_path, model, killed if when == "after every batch" else None).new)
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


def test_other_settings_are_reported(whole, source, model):
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    with pytest.raises(Refused, match=r"other settings: method: 'grad_cam' in the folder, 'hires_cam' now"):
        explain(source, whole, model, method="hires_cam")
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_folder_with_other_files_is_not_changed(source, model, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(Refused, match="contains other files"):
        explain(source, tmp_path, model)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_run_is_written_by_one_process(source, model, tmp_path):
    """Another process tries to write the same run."""
    job = run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    (tmp_path / "record.json").write_text(json.dumps(job.shards.record), encoding="utf-8")
    code = (
        "import json, sys; from saliscope.datasets.shards import Shards; from saliscope.errors import Refused\n"
        "try: Shards(sys.argv[1], json.load(open(sys.argv[1] + '/record.json')))\n"
        "except Refused as refusal: print(refusal)"
    )
    other = [sys.executable, "-c", code, str(tmp_path)]
    output = subprocess.run(other, cwd=EXAMPLES.parents[1], capture_output=True, text=True, timeout=120).stdout
    assert output.startswith("Another process is writing the run")
    assert run.run(job, decode=open_image, workers=0).new == 11
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []
    run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    assert not (tmp_path / shards.WORK).exists(), "a finished run is only read"


def test_full_disk_is_reported_and_no_row_is_lost(whole, source, model, tmp_path, monkeypatch):
    replace, calls = os.replace, []

    def full(*arguments: str) -> None:
        calls.append(arguments)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*arguments)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Refused, match="The disk of .* is full.* run the same command again"):
        explain(source, tmp_path, model)
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Refused, match="Cannot write to"):
        explain(source, Path("/dev/null/run"), model)
    assert explain(source, tmp_path, model).new == 11 - 2 * 2 and rows_of(tmp_path) == rows_of(whole)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("label", [235, 285, 1]), ("goldfish", [1, 1, 1]), ("7", [7, 7, 7]), ("predicted", [235, 282, 1])],
)
def test_targets(target, expected, source, model, tmp_path):
    explain(source, tmp_path, model, target=target)
    rows = {row["path"]: row for row in rows_of(tmp_path)}
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
    with pytest.raises(Refused, match="No image has the label 'zebra'"):
        explain(source, tmp_path / "none", model, where="label=zebra")
    assert not (tmp_path / "none").exists()


def test_limit_applies_to_images_with_the_label(source, model, tmp_path):
    job = run.prepare(Settings(where="label=goldfish"), source, tmp_path / "run", limit=1, model=model)
    assert [item.path for item in job.items] == ["goldfish.jpg"]


@pytest.mark.parametrize("settings", [{"target": "label"}, {"where": "wrong"}])
@pytest.mark.parametrize(("label", "message"), [("", "no image has one"), ("gadget", "none is: gadget")])
def test_unusable_labels_are_reported(settings, label, message, model, tmp_path):
    (tmp_path / "list.csv").write_text(f"path,label\n{EXAMPLES / 'dog.jpg'},{label}\n", encoding="utf-8")
    with pytest.raises(Refused, match=message):
        explain(str(tmp_path / "list.csv"), tmp_path / "out", model, **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "grad_camm"}, "Unknown method 'grad_camm'.*grad_cam"),
        ({"method": "feature_maps"}, "Unknown method|not a map"),
        ({"target": "unicorn"}, "not a class of efficientnet_lite0"),
        ({"method": "saliency", "layer": "head"}, "explains the input"),
        ({"options": {"samples": 9}}, "grad_cam has no option 'samples'"),
        ({"method": "smooth_grad", "options": {"samples": -1}}, "samples"),
        ({"target": "shepherd"}, "not a class of efficientnet_lite0. Did you mean .*'German shepherd'"),
        ({"target": "goldfihs"}, "Did you mean 'goldfish'"),
        ({"precision": "bf16"}, "grad_cam computes in float32"),
        ({"precision": "fp8"}, "Use auto, float32, bf16"),
        ({"where": "blue"}, "Use wrong, or label=NAME"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_invalid_settings_are_reported_before_any_work(settings, message, source, model, tmp_path):
    with pytest.raises(Refused, match=message):
        explain(source, tmp_path / "out", model, **settings)
    assert not (tmp_path / "out").exists()


def test_maps_outside_the_float16_range_keep_their_values():
    maps = torch.tensor([[[3e7, -1e5]], [[2e-9, 1e-10]], [[0.0, 0.0]], [[1.5, 0.25]]])
    halves, scales = _to_float16(maps)
    assert (halves.float() * scales[:, None, None]).sub(maps).abs().le(1e-3 * maps.abs().amax(2, keepdim=True)).all()
    assert scales[2] == scales[3] == 1


def test_damaged_run_is_reported(whole, tmp_path):
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "part-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(Refused, match="is damaged"):
        shards.open_run(tmp_path)
    for folder, message in ((tmp_path / "nowhere", "Folder not found"), (EXAMPLES, "does not contain a run")):
        with pytest.raises(Refused, match=message):
            shards.open_run(folder)


def test_rows_are_written_and_read(tmp_path):
    run_shards = shards.Shards(tmp_path / "new", {"a": 1})
    row = dict.fromkeys(SCHEMA.names) | {"path": "a.jpg", "statistics": [{"name": "min", "value": 1.0}], "error": "no"}
    run_shards.write_batch(0, 0, [row], Stamp("", [None]))
    run_shards.merge(0, 1)
    expected = pa.Table.from_pylist([row], SCHEMA)
    assert pq.read_table(tmp_path / "new" / "part-00000.parquet").equals(expected)
