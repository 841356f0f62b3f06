"""A run over many pictures: its rows are the library's own maps, and whatever stops it, it ends the same."""

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

import explainers
from dataset import run, shards
from dataset.errors import Refused
from dataset.explaining import _halves
from dataset.rows import SCHEMA, map_of
from dataset.settings import Classes, Settings
from models import load_model
from ui.serving.uploads import open_picture

EXAMPLES = Path(__file__).parents[1] / "assets" / "examples"
SMALL = {"batch_size": 2, "shard": 4}


@pytest.fixture(scope="module")
def model():
    return load_model("efficientnet_lite0")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine photographs with labels, one file that is none, and one that is missing."""
    folder = tmp_path_factory.mktemp("source")
    labels = {"dog": "German shepherd", "cat": "Egyptian cat", "goldfish": "goldfish, Carassius auratus", "alp": "970"}
    lines = ["path,label"]
    for path in sorted(EXAMPLES.glob("*.jpg")):
        (folder / path.name).write_bytes(path.read_bytes())
        lines.append(f'{path.name},"{labels.get(path.stem, "no such class")}"')
    (folder / "broken.jpg").write_bytes((EXAMPLES / "dog.jpg").read_bytes()[:2000])
    (folder / "list.csv").write_text("\n".join([*lines, "broken.jpg,alp", "missing.jpg,alp"]), encoding="utf-8")
    return str(folder / "list.csv")


def explained(source: str, out: Path, model, report=None, **settings) -> run.Summary:
    job = run.prepare(Settings(**{**SMALL, **settings}), source, out, model=model)
    return run.run(job, decode=open_picture, workers=0, report=report)


def rows_of(out: Path) -> list[dict]:
    return [{**row, "seconds": None} for row in shards.open_run(out).table.to_pylist()]


@pytest.fixture(scope="module")
def whole(source, model, tmp_path_factory) -> Path:
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    summary = explained(source, out, model)
    assert summary.counts == {"looked_at": 11, "pictures": 11, "unreadable": 2, "labelled": 4, "correct": 3}
    assert summary.new == 11
    return out


def test_rows_are_the_librarys_own_maps_and_the_networks_own_scores(whole, model):
    """By hand: one photograph at a time through `explain` and the network."""
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


def test_labels_are_found_by_name_synonym_and_number(whole):
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


def test_pictures_that_cannot_be_read_are_rows_with_their_reason(whole):
    rows = {row["path"]: row for row in rows_of(whole)}
    assert "damaged or ends too early" in rows["broken.jpg"]["error"] and rows["broken.jpg"]["label"] == "alp"
    assert "There is no file" in rows["missing.jpg"]["error"] and rows["missing.jpg"]["map"] is None
    assert rows["broken.jpg"]["sha256"] and rows["missing.jpg"]["sha256"] is None


def test_the_manifest_is_written_last_and_says_how_the_rows_came_to_be(whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["parts"] == [f"part-{k:05d}.parquet" for k in range(3)] and len(manifest["weights_sha256"]) == 64
    assert manifest["settings"]["method"] == "grad_cam" and manifest["versions"]["torch"] == torch.__version__
    assert sorted(path.name for path in whole.iterdir()) == ["manifest.json", *manifest["parts"], "settings.json"]
    assert max(whole.iterdir(), key=lambda path: path.stat().st_mtime_ns).name == "manifest.json"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", ["after every batch", "before every file", "while a file is written"])
def test_a_run_that_is_killed_anywhere_ends_as_an_undisturbed_one(when, whole, source, model, tmp_path, monkeypatch):
    """Nothing is lost, nothing is there twice, every column but the seconds is equal bit by bit."""
    replace, kills, new = os.replace, 0, []

    def killed(*_: object) -> None:
        raise Killed

    def once(*arguments: str) -> None:
        monkeypatch.setattr(os, "replace", replace)  # it gets one file further each time
        if when == "while a file is written":
            Path(arguments[0]).write_bytes(b"half")
        raise Killed

    def second(*arguments: str) -> None:
        replace(*arguments)
        monkeypatch.setattr(os, "replace", once)

    for _ in range(40):
        monkeypatch.setattr(os, "replace", replace if when == "after every batch" else second)
        try:
            new.append(explained(source, tmp_path, model, killed if when == "after every batch" else None).new)
            break
        except Killed:
            kills += 1
            with pytest.raises(Refused, match="is not finished|holds no run"):
                shards.open_run(tmp_path)
    assert kills >= 6 and rows_of(tmp_path) == rows_of(whole)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(each.name for each in whole.iterdir())
    assert explained(source, tmp_path, model).new == 0, "once finished, the same command has nothing to do"


@pytest.mark.slow
def test_worker_processes_give_the_same_rows(whole, source, model, tmp_path):
    job = run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    run.run(job, decode=open_picture, workers=1)
    assert rows_of(tmp_path) == rows_of(whole)


def test_other_settings_are_refused_with_the_difference_named(whole, source, model):
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    with pytest.raises(Refused, match=r"other settings: method: 'grad_cam' there, 'hires_cam' now"):
        explained(source, whole, model, method="hires_cam")
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_a_folder_of_other_things_is_left_alone(source, model, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(Refused, match="holds other files"):
        explained(source, tmp_path, model)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_run_is_written_by_one_process(source, model, tmp_path):
    """Oracle: another process, which begins the same run and waits."""
    job = run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    (tmp_path / "record.json").write_text(json.dumps(job.shards.record), encoding="utf-8")
    code = (
        "import json, sys; from dataset.shards import Shards; from dataset.errors import Refused\n"
        "try: Shards(sys.argv[1], json.load(open(sys.argv[1] + '/record.json')))\n"
        "except Refused as refusal: print(refusal)"
    )
    other = [sys.executable, "-c", code, str(tmp_path)]
    said = subprocess.run(other, cwd=EXAMPLES.parents[1], capture_output=True, text=True, timeout=120).stdout
    assert said.startswith("Another process is writing the run")
    assert run.run(job, decode=open_picture, workers=0).new == 11
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []
    run.prepare(Settings(**SMALL), source, tmp_path, model=model)
    assert not (tmp_path / shards.WORK).exists(), "a finished run is only read"


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(whole, source, model, tmp_path, monkeypatch):
    replace, calls = os.replace, []

    def full(*arguments: str) -> None:
        calls.append(arguments)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*arguments)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Refused, match="No room is left on the disk .* run the same command again"):
        explained(source, tmp_path, model)
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Refused, match="cannot be written to"):
        explained(source, Path("/dev/null/run"), model)
    assert explained(source, tmp_path, model).new == 11 - 2 * 2 and rows_of(tmp_path) == rows_of(whole)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("label", [235, 285, 1]), ("goldfish", [1, 1, 1]), ("7", [7, 7, 7]), ("predicted", [235, 282, 1])],
)
def test_targets(target, expected, source, model, tmp_path):
    explained(source, tmp_path, model, target=target)
    rows = {row["path"]: row for row in rows_of(tmp_path)}
    assert [rows[f"{name}.jpg"]["target_index"] for name in ("dog", "cat", "goldfish")] == expected
    assert rows["macaw.jpg"]["target_index"] == {"goldfish": 1, "7": 7}.get(target, 88), "no label: the prediction"
    image = model.prepare(Image.open(EXAMPLES / "cat.jpg"))
    found = explainers.grad_cam(model.network, image, expected[1])[0]
    assert torch.from_numpy(map_of(rows["cat.jpg"])).sub(found).abs().max() < 2e-3 * found.abs().max()


def test_where_keeps_what_is_asked_for(source, model, tmp_path):
    summary = explained(source, tmp_path / "wrong", model, where="wrong")
    assert summary.counts == {"looked_at": 11, "pictures": 3, "unreadable": 2, "labelled": 4, "correct": 3}
    rows = rows_of(tmp_path / "wrong")
    assert [row["path"] for row in rows] == ["broken.jpg", "cat.jpg", "missing.jpg"]
    explained(source, tmp_path / "named", model, where="label=German shepherd")
    assert [row["path"] for row in rows_of(tmp_path / "named")] == ["dog.jpg"]
    with pytest.raises(Refused, match="No picture has the label 'zebra'"):
        explained(source, tmp_path / "none", model, where="label=zebra")
    assert not (tmp_path / "none").exists()


def test_a_limit_is_of_the_pictures_with_the_label(source, model, tmp_path):
    job = run.prepare(Settings(where="label=goldfish"), source, tmp_path / "run", limit=1, model=model)
    assert [item.path for item in job.items] == ["goldfish.jpg"]


@pytest.mark.parametrize("settings", [{"target": "label"}, {"where": "wrong"}])
@pytest.mark.parametrize(("label", "sentence"), [("", "no picture has one"), ("gadget", "none is: gadget")])
def test_labels_that_no_network_could_compare_with_are_refused(settings, label, sentence, model, tmp_path):
    (tmp_path / "list.csv").write_text(f"path,label\n{EXAMPLES / 'dog.jpg'},{label}\n", encoding="utf-8")
    with pytest.raises(Refused, match=sentence):
        explained(str(tmp_path / "list.csv"), tmp_path / "out", model, **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "grad_camm"}, "no method 'grad_camm'.*grad_cam"),
        ({"method": "feature_maps"}, "There is no method|gives no map"),
        ({"target": "unicorn"}, "no class of efficientnet_lite0"),
        ({"method": "saliency", "layer": "head"}, "explains the input"),
        ({"options": {"samples": 9}}, "grad_cam has no option 'samples'"),
        ({"method": "smooth_grad", "options": {"samples": -1}}, "samples"),
        ({"target": "shepherd"}, "no class of efficientnet_lite0. Did you mean .*'German shepherd'"),
        ({"target": "goldfihs"}, "Did you mean 'goldfish'"),
        ({"precision": "bf16"}, "grad_cam computes in float32"),
        ({"precision": "fp8"}, "Give auto, float32, bf16"),
        ({"where": "blue"}, "Give wrong, or label=NAME"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(settings, sentence, source, model, tmp_path):
    with pytest.raises(Refused, match=sentence):
        explained(source, tmp_path / "out", model, **settings)
    assert not (tmp_path / "out").exists()


def test_maps_outside_of_float16_keep_their_values():
    maps = torch.tensor([[[3e7, -1e5]], [[2e-9, 1e-10]], [[0.0, 0.0]], [[1.5, 0.25]]])
    halves, scales = _halves(maps)
    assert (halves.float() * scales[:, None, None]).sub(maps).abs().le(1e-3 * maps.abs().amax(2, keepdim=True)).all()
    assert scales[2] == scales[3] == 1


def test_a_damaged_run_is_one_sentence(whole, tmp_path):
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "part-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(Refused, match="is damaged"):
        shards.open_run(tmp_path)
    for folder, sentence in ((tmp_path / "nowhere", "There is no folder"), (EXAMPLES, "holds no run")):
        with pytest.raises(Refused, match=sentence):
            shards.open_run(folder)


def test_rows_of_every_column_survive_the_file(tmp_path):
    kept = shards.Shards(tmp_path / "new", {"a": 1})
    row = dict.fromkeys(SCHEMA.names) | {"path": "a.jpg", "statistics": [{"name": "min", "value": 1.0}], "error": "no"}
    kept.keep(0, 0, [row])
    kept.close(0, 1)
    assert kept.rows_of(0).equals(pa.Table.from_pylist([row], SCHEMA))
