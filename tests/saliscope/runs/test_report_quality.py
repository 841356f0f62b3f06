"""Calibration, slices, label errors, hierarchy and features of a report, and reports of large runs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from benchmarks.data_sets.synthetic import write_run
from saliscope.errors import Refused
from saliscope.runs.report import metadata
from saliscope.runs.report.analysis import maps as map_pass
from saliscope.runs.report.analysis.clusters import project
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.label_errors import find_label_errors
from saliscope.runs.report.analysis.slices import divide, find_slices, folders, lower, more_mistakes
from saliscope.runs.report.analysis.summary import Rate, by_ancestor, calibrate, median_size
from saliscope.runs.rows import SCHEMA, RunData
from saliscope.runs.shards import open_run
from tests.saliscope.runs.test_dataset_report import page_of, page_text, row, small_run
from tests.support.stored_runs import store_rows


def test_calibration_by_hand():
    """Bins: (0.25, 0.5] has 0.3 and 0.5, one correct; (0.5, 0.75] has 0.6, wrong; (0.75, 1] has 0.9, 1, correct."""
    p, correct = np.array([0.3, 0.5, 0.6, 0.9, 1.0, 0.7, np.nan]), np.array([1, 0, 0, 1, 1, -1, 1])
    found = calibrate(p.astype(np.float32), correct, bins=4)
    assert found.count == 5 and [(b.low, b.rate.correct, b.rate.count) for b in found.bins] == [
        (0.25, 1, 2), (0.5, 0, 1), (0.75, 2, 2),
    ]  # fmt: skip
    assert found.ece == pytest.approx((2 * abs(0.5 - 0.4) + 1 * 0.6 + 2 * 0.05) / 5)
    assert calibrate(np.array([np.nan]), np.array([1])) is None
    edges = calibrate(np.arange(16, dtype=np.float32) / 15, np.ones(16))
    assert [round(each.high * 15) for each in edges.bins] == list(range(1, 16)), "0 belongs to the first bin"


def test_calibrated_predictions_are_not_called_uncalibrated():
    random = np.random.default_rng(0)
    p_values = []
    for _ in range(60):
        p = random.random(400)
        p_values.append(calibrate(p, (random.random(400) < p).astype(int)).p)
    assert np.mean(np.array(p_values) < 0.05) <= 0.15
    p = random.random(400)
    assert calibrate(p, (random.random(400) < p**3).astype(int)).p < 0.01


def probabilities_run(
    folder: Path, seed: int, classes: int, count: int = 400
) -> tuple[RunData, np.ndarray, np.ndarray]:
    """A run with random probabilities, in which a fifth of the labels are wrong."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, classes, count)
    logits = random.normal(0, 1, (count, classes)) + 3 * np.eye(classes)[truth]
    p = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    labels = np.where(random.random(count) < 0.2, random.integers(0, classes, count), truth)
    names, best = [*map(str, range(classes))], p.argmax(1)
    rows = [
        row(f"{k:04d}", names[labels[k]], int(labels[k]), best[k], float(p[k].max()), [[1.0]], names, p[k])
        for k in range(count)
    ]
    return store_rows(folder, {"settings": {}}, pa.Table.from_pylist(rows, SCHEMA)), p, labels


def confident_learning(p: np.ndarray, labels: np.ndarray) -> list[int]:
    """The definition of cleanlab's documentation, image by image, from the probabilities of all classes."""
    present = sorted(set(labels.tolist()))
    limits = {k: max(float(np.mean([q[k] for q, y in zip(p, labels, strict=True) if y == k])), 2e-6) for k in present}
    found = []
    for k, (q, label) in enumerate(zip(p, labels, strict=True)):
        confident = [j for j in present if q[j] >= limits[j] - 1e-6]
        guess = confident[0] if len(confident) == 1 else int(q.argmax()) if confident else None
        if guess is not None and guess != label and int(q.argmax()) != label:
            found.append(k)
    return sorted(found, key=lambda k: p[k, labels[k]])


@pytest.mark.parametrize("classes", [3, 12])
def test_label_errors_are_those_of_confident_learning(tmp_path, classes):
    """Oracle: the definition; with cleanlab, also its own function. With 12 classes, rows have only five of them."""
    data, p, labels = probabilities_run(tmp_path, classes, classes)
    found = find_label_errors(data, Columns(data))
    expected = confident_learning(p, labels)
    assert expected and set(found.rows.tolist()) <= set(expected)
    assert len(expected) - len(found.rows) <= found.unknown and (classes > 5 or found.unknown == 0)
    if len(found.rows) == len(expected):
        np.testing.assert_array_equal(p[found.rows, labels[found.rows]], p[expected, labels[expected]])
    if importlib.util.find_spec("cleanlab"):
        from cleanlab.filter import find_label_issues

        own = find_label_issues(
            labels, p, filter_by="confident_learning", return_indices_ranked_by="self_confidence", n_jobs=1
        )
        assert sorted(own.tolist()) == sorted(expected)


def test_slices_with_a_lower_accuracy_are_found():
    random = np.random.default_rng(0)
    camera = random.integers(0, 3, 900)
    correct = (random.random(900) < np.where(camera == 2, 0.6, 0.9)).astype(np.int8)
    columns = {"camera": pa.array([f"c{k}" for k in camera]), "noise": pa.array(random.random(900))}
    columns |= {"id": pa.array([str(k) for k in range(900)]), "one": pa.array(["x"] * 900)}
    found = find_slices(columns, correct)
    assert [(each.column, each.value) for each in found.worst] == [("camera", "c2")] and found.tested == 3 + 5
    assert set(found.skipped) == {"id", "one"}
    # Of 3 + 3 images with 3 correct, none of the three inside: 1 of C(6, 3) = 20 arrangements.
    assert lower(Rate(0, 3), Rate(3, 3)) == pytest.approx(1 / 20)
    assert found.worst[0].rate.count == (camera == 2).sum() and found.worst[0].rest.count == (camera != 2).sum()


def test_mistakes_are_expected_within_each_label():
    """Oracle: all 6 × 15 ways to choose 1 of 6 and 2 of 6 images, of which 2 and 3 are mistakes."""
    first, second = ([*itertools.combinations([1] * m + [0] * (6 - m), n)] for m, n in ((2, 1), (3, 2)))
    sums = [sum(a) + sum(b) for a, b in itertools.product(first, second)]
    of_labels = np.array([1, 2]), np.array([2, 3]), np.array([6, 6])
    for wrong in ([0, 0], [1, 1], [0, 2], [1, 2]):
        p = np.mean([each >= sum(wrong) for each in sums])
        assert more_mistakes(np.array(wrong), *of_labels) == pytest.approx(p)
    assert more_mistakes(*(np.array([each]) for each in (2, 2, 3, 6))) == pytest.approx(3 / 15), "one label"
    found = find_slices({"camera": pa.array(["a", "b"] * 60)}, np.array([0, 1] * 60, "i1"), np.array([0, 1] * 60))
    assert not found.worst and "same labels without it" in found.skipped["camera"], "each camera has its own label"


def test_folders_are_those_below_the_common_one():
    found = folders(pa.chunked_array([["run/a/x/1.png", "run/a/y/2.png", "run/b/x/3.png", "run/4.png"]]))
    assert {name: values.to_pylist() for name, values in found.items()} == {
        "folder, level 1": ["run/a", "run/a", "run/b", None],
        "folder, level 2": ["run/a/x", "run/a/y", "run/b/x", None],
        "folder name, level 2": ["x", "y", "x", None],
    }
    assert folders(pa.chunked_array([["run/a/1.png", "run/b/2.png"]])).keys() == {"folder, level 1"}
    assert folders(pa.chunked_array([["run/1.png", "run/2.png"]])) == folders(pa.chunked_array([["1.png"]])) == {}


def test_few_noise_slices_are_reported():
    """Of 50 data sets without a difference, at most 5% and a few by chance report any slice."""
    random = np.random.default_rng(1)
    reported = 0
    for _ in range(50):
        columns = {name: pa.array(random.integers(0, 6, 300).astype(str)) for name in "abcd"}
        reported += bool(find_slices(columns, (random.random(300) < 0.8).astype(np.int8)).worst)
    assert reported <= 5


def test_values_are_divided_into_groups():
    codes, names = divide(pa.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, None]))
    assert codes[-1] == -1 and len(names) == 5 and np.bincount(codes[:-1]).min() >= 2
    codes, names = divide(pa.array([0] * 90 + list(range(1, 21))))  # most numbers are equal
    assert len(names) == len(set(codes.tolist())) and len(set(codes[:90].tolist())) == 1
    assert divide(pa.array([True, False, None]))[1] == ["True", "False"]
    assert isinstance(divide(pa.array([[1], [2]])), str)


def test_metadata_is_joined_by_path(tmp_path):
    table = pa.table({"path": ["./b.jpg", "007", "a.jpg"], "camera": ["x", "y", None], "iso": [100, 200, 300]})
    (tmp_path / "list.csv").write_text("path;camera;iso\n./b.jpg;x;100\n007;y;200\na.jpg;;300\n")
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(each) + "\n" for each in table.to_pylist()))
    pq.write_table(table, tmp_path / "list.parquet")
    paths = pa.chunked_array([["a.jpg", "b.jpg"], ["007", "gone.jpg"]])
    for file in map(str, tmp_path.iterdir()):
        found = metadata.read(file, paths)
        assert found["camera"].to_pylist() == [None, "x", "y", None], file
        assert found["iso"].to_pylist() == [300, 100, 200, None]
        assert metadata.of_source(file, paths).keys() == found.keys() and metadata.of_source("no.csv", paths) == {}


def test_bad_metadata_is_refused(tmp_path):
    for text, message in (
        ("name,x\na,1\n", "has no column path"),
        ("path,x\na,1\na,2\n", "has 2 rows of 'a'"),
        ("path,x\nb,1\n", "has no path of the run, such as 'a'"),
        ("path,x\na,1,2\n", "Cannot read"),
    ):
        (tmp_path / "list.csv").write_text(text)
        with pytest.raises(Refused, match=message):
            metadata.read(str(tmp_path / "list.csv"), pa.chunked_array([["a"]]))


def test_mistakes_are_counted_by_ancestor(tmp_path):
    rows = [row(str(k), "", 281, 0, 0.9, [[1.0]]) | {"prediction_index": 282, "correct": False} for k in range(3)]
    rows.append(row("x", "", 1, 0, 0.9, [[1.0]]) | {"prediction_index": 453, "correct": False})
    rows.append(row("y", "", 1, 0, 0.9, [[1.0]]) | {"prediction_index": 1, "correct": True})
    data = store_rows(tmp_path, {}, pa.Table.from_pylist(rows, SCHEMA))
    found = by_ancestor(Columns(data), ["tench", *map(str, range(999))])
    assert (found[0].name, found[0].count, found[0].pairs) == ("domestic cat", 3, 1)
    assert sum(each.count for each in found) == 4 and median_size(found) == found[0].classes
    assert by_ancestor(Columns(data), ["cat", "dog"]) is None


def test_features_of_two_groups_are_apart():
    random = np.random.default_rng(0)
    groups = np.repeat([[8.0] * 60, [-8.0] * 60], 30, axis=0) + random.normal(size=(60, 60))
    places = project(groups)
    assert places.min() == 0 and places.max() == 1
    centers = places[:30].mean(0), places[30:].mean(0)
    spread = max(np.linalg.norm(places[:30] - centers[0], axis=1).max(), 1e-9)
    assert math.dist(*centers) > spread
    assert project(groups[:10]) is None and project(np.ones((30, 4))) is None


def test_maps_of_another_size_than_their_bytes_are_refused(tmp_path):
    for size in ({"map_height": 3}, {"map_height": 0}):
        broken = small_run(tmp_path, row("z.jpg", "cat", 0, 0, 0.5, [[1.0]], **size))
        with pytest.raises(Refused, match="The run is damaged: a map of . × 1 has"):
            page_of(broken, tmp_path)
    assert not (tmp_path / "r.html").exists()


def test_a_sample_has_the_same_number_of_each_class(tmp_path, monkeypatch):
    """A sample of 64 from classes of 8, 40 and 60 maps: all of the first, and 28 of each other."""
    labels = [0] * 8 + [1] * 40 + [2] * 60
    rows = [row(f"{k:03d}", None, None, label, 0.9, [[1]], "abc") for k, label in enumerate(labels)]
    data = store_rows(tmp_path, {}, pa.Table.from_pylist(rows, SCHEMA))
    columns = Columns(data)
    large = 2**9, 2**9  # of which 32 have all the cells that a sample may have
    for most, size, count in (
        (108, (1, 1), (8, 40, 60)), (64, (1, 1), (8, 28, 28)), (63, (1, 1), (8, 27, 27)), (64, large, (8, 12, 12)),
        (30, (1, 1), (8, 11, 11)), (9, (1, 1), (8, 10, 10)),
    ):  # fmt: skip
        monkeypatch.setattr(map_pass, "SAMPLE", most)
        chosen = map_pass.choose_sample(columns, size)
        assert tuple(part.sum() for part in np.split(chosen, (8, 48))) == count
    assert chosen[8] and chosen[47] and not chosen[9], "evenly spaced"
    found = map_pass.read_all(data, columns, columns.target.codes, False, {"all": np.ones((1, 1))})
    assert found.sampled and found.sample.rows.tolist() == np.flatnonzero(chosen).tolist()
    assert found.regions["all"].count == 108 and found.means[:3].tolist() == [[[1]]] * 3, "those of all maps"


def test_means_and_shares_are_those_of_all_maps(tmp_path):
    """Oracle: numpy over the whole table."""
    write_run(tmp_path, 300, shard=128)
    data = open_run(tmp_path)
    columns = Columns(data)
    found = map_pass.read_all(data, columns, columns.label.codes, False, {"half": lambda rows: np.eye(7)})
    maps = np.stack([np.frombuffer(each, "<f2").reshape(7, 7) for each in data.table["map"].to_pylist()]).astype(float)
    share = (maps * np.eye(7)).sum((1, 2)) / maps.sum((1, 2))
    np.testing.assert_allclose(found.regions["half"].shares, share, rtol=1e-5)
    assert found.regions["half"].even == pytest.approx(1 / 7) and not found.sampled
    code = int(columns.label.codes[0])
    np.testing.assert_allclose(found.means[code], maps[columns.label.codes == code].mean(0))
    text = page_text(page_of(data, tmp_path))
    assert "Accuracy" in text and "Common ancestor" in text and "300 images" in text
