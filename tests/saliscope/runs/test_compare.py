"""Comparing two runs: pairs, tests, agreement of maps, and the page."""

from __future__ import annotations

import base64
import io
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet as pq

from explainers import rank_correlation
from saliscope.errors import Refused
from saliscope.runs.compare import compare as write
from saliscope.runs.compare.comparing import Comparison
from saliscope.runs.compare.comparing import pair as pair_rows
from saliscope.runs.compare.statistics import (
    Distribution,
    Frame,
    align,
    common_boxes,
    compare_maps,
    mcnemar,
    paired_difference,
    top_overlap,
)
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.rows import SCHEMA, RunData
from saliscope.zoo.model import Preparation
from tests.saliscope.runs.test_dataset_report import assert_self_contained, data_of, page_text, row
from tests.support.stored_runs import store_rows

SETTINGS = {"model": "toy", "method": "grad_cam", "layer": None, "labels_and_preprocessing": "same"}
RAMP, REVERSED, FLAT = [[0, 1], [2, 3]], [[3, 2], [1, 0]], [[1, 1], [1, 1]]


def finished(folder: Path, rows: list[dict], classes: tuple[str, ...] = ("cat", "dog"), **settings) -> FinishedRun:
    """A run in memory, whose images are not available."""
    manifest = {"settings": SETTINGS | settings, "source": str(folder / "nowhere"), "classes": list(classes)}
    data = store_rows(folder, manifest, pa.Table.from_pylist(rows, SCHEMA))
    return FinishedRun(data, lambda data: pytest.fail("no image is available"))


def pair(folder: Path) -> tuple[FinishedRun, FinishedRun]:
    """Seven images in both runs, one in A only, two in B only, and one that B could not read."""
    a = [
        row("1", "cat", 0, 0, 0.9, RAMP, sha256="x"),  # same
        row("2", "cat", 0, 1, 0.8, RAMP, sha256="x2"),  # gained
        row("3", "cat", 0, 1, 0.7, RAMP, sha256="x3"),  # gained
        row("4", "dog", 1, 1, 0.6, RAMP, sha256="x4"),  # lost
        row("5", "dog", 1, 1, 0.6, RAMP, sha256="x5"),  # same, opposite map
        row("6", "dog", 1, 1, 0.6, FLAT, sha256="x6"),  # same, uniform map
        row("7", None, None, 0, 0.5, RAMP, sha256="x7"),  # changed
        row("8", "dog", 1, 1, 0.5, RAMP, sha256="x8"),
        row("only-a", "dog", 1, 1, 0.5, RAMP, sha256="x9"),
    ]
    b = [
        row("0-only-b", "dog", 1, 1, 0.5, RAMP),
        row("1", "cat", 0, 0, 0.9, [[0, 10], [20, 30]], sha256="x"),
        row("2", "cat", 0, 0, 0.8, RAMP, sha256="x2"),
        row("3", "cat", 0, 0, 0.95, RAMP, sha256="x3"),
        row("4", "dog", 1, 0, 0.6, RAMP, sha256="x4"),
        row("5", "dog", 1, 1, 0.6, REVERSED, sha256="x5"),
        row("6", "dog", 1, 1, 0.6, RAMP, sha256="changed"),
        row("7", None, None, 1, 0.5, RAMP, sha256="x7"),
        {"path": "8", "label": "dog", "error": "Not an image."},
        row("9-only-b", "dog", 1, 1, 0.5, RAMP),
    ]
    return finished(folder / "a", a), finished(folder / "b", b, method="hires_cam")


def compared(a: FinishedRun, b: FinishedRun) -> Comparison:
    """The result that the page of a comparison shows."""
    comparer = Comparison(a.data, b.data, align(a, b).frames)
    assert sum(map(len, comparer.rows()))
    return comparer


def test_numbers_match_a_manual_computation(tmp_path):
    done = write(*pair(tmp_path), tmp_path / "compare.html")

    text = page_text(done.page)
    assert done.paired == 8 and done.compared == 7 and done.agree == 3
    assert "Images in both runs 8 1 only in A, 2 only in B" in text
    assert "Predictions changed 57.1% 4 of 7; 95% interval 25.0 to 84.2%" in text  # Wilson
    # six labeled pairs: A 4 correct (1, 4, 5, 6), B 5 (1, 2, 3, 5, 6); p = 2 (1 + 3) / 2^3 = 1
    assert "Accuracy, B − A +16.7 points 2 gained, 1 lost; not tested: McNemar's exact test needs 6" in text
    assert "Accuracy over the same 6 images: 66.7% in A (30.0 to 90.3%) and 83.3% in B (43.6 to 97.0%)." in text
    assert "B − A: +16.7 points" in text and "not significant" not in text and "not tested" in text
    # correlations 1 and −1, top cells (one of four) in common: 1 and 0
    assert "Maps of 2 images with the same prediction: mean rank correlation 0.00 (no interval: fewer than 10" in text
    assert "50% of the highest 10% of cells in common" in text
    assert "1 image with the same prediction: maps not compared (uniform map)." in text
    assert "1 image with the same key and another content" in text
    assert "1 image in both runs, but at least one run could not read them." in text
    # cat: of three, A one, B three; p = 0.5, Holm over two classes with changes: 1
    assert "cat 3 33% 100% +66.7" in text and "2 0 2 1.000" in text
    assert "Method; maps are compared by the order of their values" in text.replace("Method ;", "Method;")


def test_table_has_one_row_per_image(tmp_path):
    done = write(*pair(tmp_path), tmp_path / "compare.html")
    rows = {each["path"] or each["path_b"]: each for each in pq.read_table(done.table).to_pylist()}
    changes = {path: each["change"] for path, each in rows.items()}
    assert changes == {
        "1": "same", "2": "gained", "3": "gained", "4": "lost", "5": "same", "6": "same", "7": "changed",
        "8": "unreadable", "only-a": "only_a", "0-only-b": "only_b", "9-only-b": "only_b",
    }  # fmt: skip
    assert rows["5"]["rank_correlation"] == pytest.approx(-1) and rows["5"]["top_overlap"] == 0
    assert rows["1"]["rank_correlation"] == pytest.approx(1) and rows["1"]["top_overlap"] == 1
    assert rows["6"]["rank_correlation"] is None and rows["6"]["map_note"] == "uniform map"
    assert rows["2"]["map_note"] == "other prediction" and rows["6"]["same_content"] is False
    assert rows["8"]["error_b"] == "Not an image." and rows["3"]["probability_b"] == pytest.approx(0.95)
    shown = compared(*pair(tmp_path)).shown
    assert [[each["path"] for each in shown[kind]] for kind in ("maps", "gained")] == [["5", "1"], ["3", "2"]]


def test_cards_show_the_images_of_their_rows(tmp_path, monkeypatch):
    """The color of each image is the number in its path; the second one is not available."""

    def image(run: FinishedRun, path: str, digest: str) -> Image.Image | None:
        return None if path == "2" else Image.new("RGB", (9, 9), (25 * int(path),) * 3)

    runs = pair(tmp_path)
    monkeypatch.setattr(FinishedRun, "image", image)
    for each in runs:
        each.__dict__["preparation"] = Preparation(8, 8, (0.5,) * 3, (0.5,) * 3)
    page = write(*runs, tmp_path / "compare.html").page
    images = [each["image"].partition(",")[2] for each in data_of(page)["images"]]
    gray = [Image.open(io.BytesIO(base64.b64decode(each))).getpixel((4, 4))[0] for each in images]
    cards = re.findall(r'data-photo="(\d+)"[^>]*aria-label="(\d)"', page.read_text("utf-8"))
    assert [round(gray[int(number)] / 25) for number, _ in cards] == [int(path) for _, path in cards]
    assert sorted(path for _, path in cards) == ["1", "3", "4", "5", "7"]
    assert "1 of 6 images are not available anymore" in page_text(page)


def test_runs_with_other_classes_labels_or_targets(tmp_path):
    """Class 1 of A is class 0 of B. Labels that changed do not count, and maps of other classes are not compared."""
    a = finished(tmp_path, [row("1", "dog", 1, 1, 0.9, RAMP), row("2", "dog", 1, 0, 0.9, RAMP)])
    b_rows = [row("1", "dog", 0, 0, 0.9, RAMP), row("2", "dog", 0, 1, 0.9, RAMP)]
    for each, name in zip(b_rows, ("dog", "fox"), strict=True):
        each |= {"prediction": name, "target": name}
    result = compared(a, finished(tmp_path, b_rows, ("dog", "fox")))
    assert result.agree == 1 and result.transitions == {("cat", "fox"): 1} and result.total("labeled") == 2
    assert result.other_content == 0, "rows without a SHA-256"

    a = finished(tmp_path, [row("1", "dog", 1, 1, 0.9, RAMP), row("2", "n1", 1, 1, 0.9, RAMP)])
    b = finished(tmp_path, [row("1", "cat", 0, 1, 0.9, RAMP), row("2", "dog", 1, 1, 0.9, RAMP)])
    result = compared(a, b)
    assert result.other_labels == 1 and result.total("labeled") == 1

    a = finished(tmp_path, [row("1", None, None, 1, 0.9, RAMP)])
    b = finished(tmp_path, [row("1", None, None, 1, 0.9, RAMP, target="cat", target_index=0)])
    done = write(a, b, tmp_path / "c.html")
    assert compared(a, b).other_targets == 1 and done.rank_correlation is None
    assert "the runs explain different classes" in page_text(done.page)
    assert "none of 1 image has a label that is a class of both networks" in page_text(done.page)


@pytest.mark.parametrize("key", ["path", "sha256"])
def test_pairs_equal_those_of_a_dictionary(tmp_path, key):
    """Oracle: dictionaries, for rows in random order."""
    random = np.random.default_rng(3)
    keys = [[f"é{k}" for k in random.permutation(400)[: 300 + 20 * run]] for run in range(2)]
    rows = [
        [{"path": k, "sha256": k} if key == "path" else {"path": f"{run}{k}", "sha256": k} for k in keys[run]]
        for run in range(2)
    ]
    rows[0].append({"path": "z", "sha256": None})
    rows[1].append({"path": "y", "sha256": None})
    data = [store_rows(tmp_path, {}, pa.Table.from_pylist(each, SCHEMA)) for each in rows]
    pairing = pair_rows(*data, key)
    pairs = dict(zip(pairing.a.tolist(), pairing.b.tolist(), strict=True))
    found = {own: other for own, other in pairs.items() if other >= 0}
    place = {k: n for n, k in enumerate(keys[1])}
    assert found == {n: place[k] for n, k in enumerate(keys[0]) if k in place} and pairing.paired == len(found)
    assert list(pairs) == list(range(len(rows[0])))
    assert set(pairing.only_b.tolist()) == set(range(len(rows[1]))) - set(found.values())


def test_repeated_images_are_counted_and_repeated_paths_are_an_error(tmp_path):
    def data(*rows: str) -> RunData:
        table = pa.Table.from_pylist([{"path": each[0], "sha256": each[1]} for each in rows], SCHEMA)
        return store_rows(tmp_path, {}, table)

    twice = data("1x", "2x", "3y")
    for a, b in itertools.permutations([twice, data("4x")]):
        pairing = pair_rows(a, b, "sha256")
        assert pairing.paired == 1
        assert pairing.repeated == 1 and len(pairing.only_b) == (b is twice)
    for a, b in itertools.permutations([data("1x", "1y"), data("1x")]):
        with pytest.raises(Refused, match="several rows of '1'"):
            pair_rows(a, b)


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    one, other = (finished(tmp_path, [row(path, "dog", 1, 1, 0.9, RAMP)]) for path in "12")
    empty, wrong = finished(tmp_path, []), finished(tmp_path, [], where="wrong")
    for second, key, message in (
        (other, "path", "no image in common. If their paths differ, match them by sha256"),
        (empty, "path", "no image in common"),
        (wrong, "path", "only wrong predictions"),
        (one, "name", "Unknown key 'name'"),
    ):
        with pytest.raises(Refused, match=message):
            write(one, second, tmp_path / "c.html", match=key)
    assert [each.name for each in tmp_path.iterdir()] == ["rows"], "nothing was written"


def test_unknown_preprocessing_is_not_compared(tmp_path):
    settings = {"model": "tests.nowhere:build"}, {"model": "tests.no:b", "labels_and_preprocessing": "other"}
    done = write(
        *(finished(tmp_path, [row("1", "dog", 1, 1, 0.9, RAMP)], **own) for own in settings), tmp_path / "c.html"
    )
    assert done.rank_correlation is None and done.agree == 1
    assert "Maps were not compared: the preprocessing of the runs may differ" in page_text(done.page)


def test_overlap():
    """Oracle: sets of the highest cells."""
    random = np.random.default_rng(0)
    a, b = np.argsort(random.random((2, 40, 49)), axis=2).astype(float)
    common = [len(set(np.argsort(x)[-5:]) & set(np.argsort(y)[-5:])) / 5 for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(top_overlap(a, b), common)
    level = np.repeat([[1.0, 0.0]], 20, axis=1)  # 20 equal highest cells of 40, of which 4 count
    assert top_overlap(level, level) == pytest.approx(1) and top_overlap(level, -level) == pytest.approx(0)


def test_maps_of_other_sizes_and_frames_are_compared_on_the_common_part():
    """A has the whole image at 8 x 8, B its middle half at 4 x 4, so the maps agree exactly there."""

    def table(values: np.ndarray) -> pa.Table:
        return pa.Table.from_pylist([row("1", None, None, 1, 0.9, values.tolist())], SCHEMA)

    values = np.random.default_rng(1).normal(size=(8, 8)).astype("<f2")
    whole, middle = table(values), table(1000 * values[2:6, 2:6])
    correlation, overlap, _, sizes = compare_maps(whole, middle, (Frame((0.25, 0.25, 0.75, 0.75)), Frame()))
    assert correlation == pytest.approx(1) and overlap == pytest.approx(1) and sizes == {((8, 8), (4, 4)): 1}
    assert abs(compare_maps(whole, middle, (Frame(), Frame()))[0][0]) < 0.9
    signed, plain = compare_maps(whole, whole, (Frame(by_size=True), Frame()))[0][0], values.reshape(1, -1).astype("f8")
    assert signed == pytest.approx(float(rank_correlation(torch.from_numpy(abs(plain)), torch.from_numpy(plain))))


def test_crops_of_two_networks():
    """Oracle: a crop of 224 of 256 is 7/8 of the shorter side."""

    def net(side: int, resize: int | tuple[int, int], **more) -> Preparation:
        return Preparation(side, resize, (0.5,) * 3, (0.5,) * 3, **more)

    whole = (0, 0, 1, 1)
    assert common_boxes(net(224, 256), net(448, 512)) == (whole, whole)
    first, second = common_boxes(net(224, 224), net(224, 256))
    assert first == pytest.approx((1 / 16, 1 / 16, 15 / 16, 15 / 16), abs=0.005) and second == whole
    assert common_boxes(net(224, (224, 224)), net(224, 256)) is None  # the whole image, of any shape


def test_tests_and_intervals_match_their_formulas():
    for gained, lost in ((0, 0), (8, 1), (3, 3), (0, 5)):
        n, k = gained + lost, min(gained, lost)
        assert mcnemar(gained, lost) == pytest.approx(min(1, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n))
    difference, low, high = paired_difference(0, 0, 50)
    assert difference == 0 and low == pytest.approx(-high) and 0 < high < 0.1
    values = np.random.default_rng(2).uniform(-1, 1, 300)
    distribution = Distribution(-1, 1)
    for part in np.split(values, 3):
        distribution.add(part)
    mean = distribution.mean()
    draws = np.random.default_rng(5).choice(values, (4000, 300)).mean(1)
    assert mean.value == pytest.approx(values.mean()) and mean.count == 300
    assert (mean.low, mean.high) == pytest.approx(np.quantile(draws, (0.025, 0.975)), abs=0.006)
    for count, known in ((1, False), (9, False), (10, True)):  # an interval needs several images
        few = Distribution(-1, 1)
        few.add(np.linspace(0, 0.5, count))
        assert np.isfinite(few.mean().low) == known


def test_paired_interval_covers_the_difference():
    """Of 1,000 samples of 80 images, about 95% of the intervals contain the true difference of 0.1."""
    drawn = np.random.default_rng(0).multinomial(80, (0.2, 0.1, 0.7), 1000)
    bounds = [paired_difference(int(gained), int(lost), 80)[1:] for gained, lost, _ in drawn]
    assert 0.93 <= np.mean([low <= 0.1 <= high for low, high in bounds]) <= 0.98


def test_names_and_paths_are_escaped(tmp_path):
    bad = "</script><img src=x onerror=alert(1)>"
    a = finished(tmp_path, [row(bad, bad, 1, 1, 0.9, RAMP)], ("cat", bad), model=bad)
    b = finished(tmp_path, [row(bad, bad, 1, 0, 0.9, RAMP)], (bad + "2", bad))
    assert_self_contained(write(a, b, tmp_path / "c.html").page)
