"""The report: a planted watermark is found, nothing is found without it, and the numbers match a manual computation."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from benchmarks.data_sets import decode
from saliscope.compute.bundles import links
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.runs import report, run
from saliscope.runs.report.analysis.clusters import Cluster, spectral
from saliscope.runs.report.analysis.maps import Sample, border_region, box_region, mask_region, pool, read_maps
from saliscope.runs.report.analysis.shortcuts import describe, find_candidates
from saliscope.runs.report.content import LIMITS
from saliscope.runs.report.images import explain
from saliscope.runs.rows import SCHEMA, RunData
from saliscope.runs.settings import Settings
from saliscope.runs.shards import open_run
from tests.support import shapes
from tests.support.stored_runs import store_rows


def reported(folder: Path, share: float) -> tuple[str, dict[str, bool], RunData]:
    """Return the text of the report on a network that was trained with this fraction of marked images."""
    model, pictures = shapes.trained(share), folder / "pictures"
    marks = shapes.folder(pictures, 60, share)
    job = run.prepare(Settings(batch_size=60), str(pictures), folder / "run", model=model)
    run.run(job, decode=decode, workers=0)
    finished, page = open_run(folder / "run"), folder / "report.html"
    out = report.write(finished, page, report.Report(read=lambda path: Image.open(pictures / path), model=model))
    return page_text(out), marks, finished


def page_text(path: Path) -> str:
    """Return the visible text, without the data and scripts of the page."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", path.read_text(encoding="utf-8"), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def page_of(data: RunData, folder: Path, **options) -> Path:
    """Write the report of a run; its images are not available unless `read` is given."""
    return report.write(data, folder / "r.html", report.Report(**{"read": lambda path: None, **options}))


def data_of(path: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.S)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def watermarked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bool], RunData]:
    """The report, the marks and the run for images of which 60% of the squares have the mark."""
    return reported(tmp_path_factory.mktemp("watermarked"), 0.6)


def test_planted_watermark_is_found(watermarked, tmp_path):
    """Oracle: which images have the mark, 60% of the squares."""
    text, marks, finished = watermarked

    named = re.findall(r"(\w+) may be recognized by a mark in the ([\w ]+):", text)
    assert named == [(shapes.MARKED, "lower left corner")]
    count, share, whole, seen = re.search(
        r"(\d+) of 60 images labeled square \((\d+)%\).{,5} (\d+) of (\d+) images explained as", text
    ).groups()
    assert sum(marks.values()) == 36 and int(share) == pytest.approx(60, abs=5)
    explained = [row["path"] for row in finished.table.to_pylist() if row["target"] == shapes.MARKED]
    assert int(seen) == len(explained) and int(whole) == pytest.approx(sum(marks[path] for path in explained), abs=3)
    assert int(count) <= int(whole)
    gone = page_text(page_of(finished, tmp_path))
    assert "1 class: not tested, because the images are not" in gone


def test_nothing_is_found_without_the_watermark(tmp_path):
    """The same images and the same network, but no mark."""
    text, _, _ = reported(tmp_path, 0.0)

    assert "Possible shortcut" not in text and "by a mark" not in text and "No fault was found" in text
    assert "Shortcuts: none found in the maps of 3 of 3 classes." in text
    assert "Clusters of maps within a class" in text


TOY = {"model": "toy", "method": "grad_cam", "layer": None, "target": "predicted", "options": {}}


def row(
    path: str, label: str | None, index: int | None, prediction: int, probability: float, values: list,
    names: Sequence[str] = ("cat", "dog"), p: np.ndarray | None = None, **more,
) -> dict:  # fmt: skip
    """Return the row of an image; with the probabilities of all classes, it has the highest five."""
    name, shown = names[prediction], [(prediction, probability)]
    if p is not None:
        shown = [(int(c), float(p[c])) for c in np.argsort(-p, kind="stable")[:5]]
        more = {"label_probability": None if index is None else float(p[index]), **more}
    top = [{"class": names[c], "index": c, "probability": value} for c, value in shown]
    entry = {"path": path, "label": label, "label_index": index, "probability": probability, "top5": top}
    entry |= {"prediction": name, "prediction_index": prediction, "target": name, "target_index": prediction}
    entry |= {"correct": None if index is None else prediction == index, "score": 1.5}
    entry |= {"findings": [], "finding_texts": []}
    entry |= {"map": np.array(values, "<f2").tobytes(), "map_height": len(values), "map_width": len(values[0])}
    return entry | more


def small_run(folder: Path, *more: dict) -> RunData:
    """Six images: three of five labeled images are correct, one has an unknown class, and one is unreadable."""
    corner, even, none = [[4, 0], [0, 0]], [[1, 1], [1, 1]], [[0, 0], [0, -1]]
    finding = {"findings": ["nothing_positive"], "finding_texts": ["No evidence for the class."]}
    rows = [
        row("a.jpg", "cat", 0, 0, 0.9, corner),
        row("b.jpg", "cat", 0, 1, 0.8, even),
        row("c.jpg", "cat", 0, 1, 0.6, none, **finding),
        row("d.jpg", "dog", 1, 1, 0.7, corner),
        row("e.jpg", "dog", 1, 1, 0.5, even),
        row("f.jpg", "fox", None, 0, 0.3, even),
        {"path": "g.jpg", "label": "dog", "error": "It is <no> image."},
        *more,
    ]
    return store_rows(folder, {"settings": TOY, "source": "here"}, pa.Table.from_pylist(rows, SCHEMA))


def test_numbers_match_a_manual_computation(tmp_path):
    """Of each cell of a 2 x 2 map, 0.5 x 0.5, the inner 80% covers 0.4 x 0.4, so the border has 36% of the cell."""
    out = page_of(small_run(tmp_path), tmp_path, box=(0, 0, 0.5, 0.5))

    text = page_text(out)
    assert "Accuracy 60.0% 3 of 5; 95% interval 23.1 to 88.2%" in text  # Wilson: (p + z²/2n ± …) / (1 + z²/n)
    # cat: 1 of 3; the relevance in the box is 1 and 1/4, and c.jpg has none: 0.625 of two maps
    assert "cat 3 33% 6–79% 77% dog (2) 36% 63%" in text
    assert "dog 2 100% 34–100% 60% 36% 63%" in text and "fox 1 30% 36% 25%" in text
    assert "cat dog 2 67% 70% Show" in text  # the confusion: 2 of 3, mean of 0.8 and 0.6
    assert "At the border (the outer 10% of each side) 36% 36% 5" in text
    assert "In the given box 55% 25% 5" in text  # the mean of 1, 1/4, 1, 1/4, 1/4
    assert "No positive evidence for the class 1 17% No evidence for the class. Show" in text
    assert "1 It is <no> image. g.jpg" in text and "Unreadable 1" in text
    assert "the network was not available" in text
    shown = data_of(out)
    assert [one["path"] for one in shown["images"]] == [f"{name}.jpg" for name in "abcdef"]
    assert [one["texts"] for one in shown["images"]] == [[], [], ["No evidence for the class."], [], [], []]
    steps = np.frombuffer(base64.b64decode(shown["maps"][0]["b"]), np.int8)
    assert (steps / 127 * shown["maps"][0]["m"]).tolist() == pytest.approx([5 / 3, 1 / 3, 1 / 3, 0], abs=0.01)


def test_run_with_only_mistakes_reports_the_accuracy(tmp_path):
    """The rows contain only the two mistakes among three cats and two dogs; their own accuracy would be 0%."""
    whole = small_run(tmp_path)
    wrong = whole.table.filter([False, True, True, False, False, False, False])
    finished = store_rows(tmp_path, {**whole.manifest, "labeled": {"0": 3, "1": 2}, "counts": {"looked_at": 7}}, wrong)
    finished.manifest["settings"] = {**finished.manifest["settings"], "where": "wrong"}

    text = page_text(page_of(finished, tmp_path))

    assert "Images 2 only wrong predictions, of 5 images with a known label" in text
    assert "Accuracy 60.0% 3 of 5" in text and "cat 2 33%" in text and "cat dog 2 67% 70% Show" in text
    assert "correct and wrong" not in text
    assert "The run has only wrong predictions, so calibration was not computed." in text

    # A source may use WordNet IDs; labels that are not classes of the network are shown as in the source.
    named = small_run(tmp_path, row("z.jpg", "n02123045", 0, 1, 0.99, [[1, 0], [0, 0]]))
    named.manifest["classes"] = ["cat", "dog"]
    text = page_text(page_of(named, tmp_path))
    assert "n02123045" not in text and "cat dog 3 75%" in text and "fox 1 30%" in text


def test_regions_are_exact_in_area():
    """Oracle: the image is sampled at 1,000 x 1,000 points, and each cell counts the points in the box."""
    box = (0.13, 0.25, 0.61, 0.9)
    points = (np.arange(1000) + 0.5) / 1000
    inside = ((points >= box[1]) & (points < box[3]))[:, None] & ((points >= box[0]) & (points < box[2]))[None]
    mask = Image.fromarray((inside * 255).astype(np.uint8))
    by_points = np.add.reduceat(np.add.reduceat(inside, range(0, 1000, 200), 0), range(0, 1000, 250), 1) / 50_000

    np.testing.assert_allclose(box_region((5, 4), box), by_points, atol=0.01)
    np.testing.assert_allclose(mask_region((5, 4), mask), by_points, atol=1e-12)
    assert border_region((7, 7)).mean() == pytest.approx(0.36)
    values = np.random.default_rng(0).random((3, 14, 9))
    np.testing.assert_allclose(pool(values, (7, 4)).mean((1, 2)), values.mean((1, 2)))  # areas add up


def test_eigengap_determines_the_number_of_clusters():
    """Oracle: three distant groups of points, and one cloud."""
    random = np.random.default_rng(1)
    found = spectral(np.repeat(np.eye(3) * 20, 25, axis=0) + random.normal(0, 1, (75, 3)))
    assert len(set(found)) == 3 and all(len(set(found[k : k + 25])) == 1 for k in (0, 25, 50))
    assert len(set(spectral(random.normal(0, 1, (60, 2))))) < 60 / 8


def test_boxes_have_descriptions():
    boxes = (0, 0.75, 0.25, 1), (0.7, 0, 1, 0.3), (0.4, 0.72, 0.6, 1), (0, 0.4, 0.2, 0.6), (0.4, 0.4, 0.6, 0.6)
    names = ["lower left corner", "upper right corner", "lower edge", "left edge", "center"]
    assert [*map(describe, boxes)] == names


def test_a_small_area_is_a_candidate_if_enough_maps_of_a_class_have_it():
    """Of the relevance, `share` is in the cell `at` of `count` maps, and `other` there in those of another class."""
    for count, of, share, other, at, is_found in (
        (8, 8, 0.5, 0, 0, True), (7, 7, 0.5, 0, 0, False), (8, 80, 0.5, 0, 0, True), (8, 81, 0.5, 0, 0, False),
        (8, 8, 0.19, 0, 0, True), (8, 8, 0.17, 0, 0, False), (8, 8, 0.5, 0.19, 0, True), (8, 8, 0.5, 0.21, 0, False),
        (8, 8, 0.5, 0, 5, False),
    ):  # fmt: skip
        maps = np.zeros((of + 8, 16))
        maps[:count, at], maps[of:, at] = share, other
        maps[:, 6] = 1 - maps.sum(1)  # a cell in the center
        sample = Sample(np.arange(of + 8), maps.reshape(-1, 4, 4), np.array(["cat"] * of + ["dog"] * 8, dtype=object))
        parts = [Cluster("cat", of, np.arange(*each), maps[0]) for each in ((0, count), (count, of)) if np.ptp(each)]
        found = find_candidates(sample, parts, lambda number: None)
        assert [(one.box, len(one.members), one.of) for one in found] == [((0, 0, 0.25, 0.25), 8, of)] * is_found
        assert all((one.relevance, one.elsewhere) == pytest.approx((share, other)) for one in found)


def assert_self_contained(page: Path) -> None:
    """Assert that there is no URL of another host, and that no text of a run becomes markup or script."""
    text = page.read_text("utf-8")
    assert "<img src=x" not in text and len(re.findall(r"<script\b", text)) == 2 and "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=\"(?!#)|url\(|@import|https?://", re.sub(r"http-equiv", "", text))


def test_page_is_self_contained_and_escapes_text(tmp_path):
    malicious = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    finished = small_run(tmp_path, row("z.jpg", malicious, 0, 1, 0.99, [[1, 0], [0, 0]]))
    out = page_of(finished, tmp_path, read=lambda path: Image.new("RGB", (64, 48), "green"))
    assert_self_contained(out)
    assert data_of(out)["images"][-1]["label"] == malicious


def test_metrics_are_compared_with_the_controls(tmp_path):
    """The report includes the result of `saliscope evaluate`."""
    one = {"title": "Deletion", "mean": 0.123456, "error": 0.01}
    one |= {"better_than": ["random"], "level_with": [], "worse_than": []}
    (tmp_path / "evaluation.json").write_text(json.dumps({"metrics": {"deletion": one}, "images": 50}))
    text = page_text(page_of(small_run(tmp_path), tmp_path))
    assert "Deletion 0.123 ± 0.01 random" in text and "over 50 images" in text and "(Holm)" in text
    (tmp_path / "evaluation.json").write_text("{")
    assert "Deletion" not in page_text(page_of(small_run(tmp_path), tmp_path)), "damaged, so it is left out"


def test_invalid_inputs_are_reported(tmp_path):
    finished = small_run(tmp_path)
    for box in ((0.5, 0, 0.2, 1), (-0.1, 0, 1, 0), (0, 0, 1.1, 1), (0, 0, 1, 1.5), (0.5, 0, 0.5, 1), (0, 0.6, 1, 0.5)):
        with pytest.raises(Refused, match="Invalid box"):
            box_region((4, 4), box)
    assert box_region((4, 4), (0, 0, 1, 1)).all()
    broken = store_rows(tmp_path, {}, pa.Table.from_pylist([{"path": "g.jpg", "error": "No."}], SCHEMA))
    black = {"mask": Image.new("L", (8, 8))}
    for run_, options, message in ((finished, black, "completely black"), (broken, {}, "nothing to report")):
        with pytest.raises(Refused, match=message):
            page_of(run_, tmp_path, **options)


def test_links_open_the_app_with_the_settings(tmp_path):
    """The app can read the links, including the image if it is an example."""
    dog = next(iter(examples.all_examples().values()))
    known, other = ({"sha256": each} for each in (hashlib.sha256(dog.path.read_bytes()).hexdigest(), "0" * 64))
    more = [row(f"{name}.jpg", "dog", 1, 1, 0.99, [[1, 0]], **own) for name, own in (("y", other), ("z", known))]
    finished = small_run(tmp_path, *more)

    out = page_of(finished, tmp_path, link="http://127.0.0.1:7860/")

    first, *_, own, last = data_of(out)["images"]
    queries = [dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(each["link"]).query)) for each in (first, own, last)]
    request, example, _ = links.read(queries[2])
    assert (request.model, request.method, request.target, example) == ("toy", "grad_cam", "dog", dog)
    request, example, _ = links.read(queries[0])
    assert request.image is None and example is None and queries[1]["example"] == "0" * 64
    assert [each["known"] for each in (first, own, last)] == [False, False, True]
    assert f"saliscope serve --run {tmp_path}" in page_text(out)


def test_large_maps_are_averaged():
    """Oracle: means of the magnitudes of 4 x 4 pixels at 224."""
    values = np.random.default_rng(0).normal(size=(224, 224)).astype("<f2")
    table = pa.Table.from_pylist([row("a.jpg", "cat", 0, 0, 0.9, values.tolist())], SCHEMA)
    expected = np.abs(values.astype(float)).reshape(56, 4, 56, 4).mean((1, 3))

    actual = read_maps(table, by_size=True, size=(56, 56))

    np.testing.assert_allclose(actual.values[0], expected)
    assert actual.relevance.sum() == pytest.approx(1)


def test_the_map_of_the_expected_class_is_drawn_like_that_of_the_run():
    """A run of a method with values per pixel shows magnitudes, so the other class cannot have signed values."""
    model, image = shapes.trained(0.0, steps=0), Image.effect_noise((32, 32), 90).convert("RGB")
    for method, is_signed in (("integrated_gradients", False), ("grad_cam", True)):
        options = {"steps": 2} if method == "integrated_gradients" else {"relu": False}
        assert (explain(image, 0, model, {"method": method, "options": options}).min() < 0) == is_signed


def test_the_range_of_a_map_and_a_long_list_of_paths_are_described(tmp_path, watermarked):
    def text_of(*more: dict) -> str:
        return page_text(page_of(small_run(tmp_path, *more), tmp_path))

    text = text_of(row("z.jpg", "cat", 0, 1, 0.99, [[-1, 2]]))
    assert "map of dog: up to 1 " in text and "map of dog: −1 to 2 " in text
    assert re.search(r"square \(expected\): up to \d.* predicted − expected: −?[\d.e−]+ to [\d.e−]+ ", watermarked[0])
    most = LIMITS["paths"]
    for count in (most, most + 1):
        text = text_of(*({"path": f"{number}.jpg", "error": "damaged"} for number in range(count)))
        names = ", ".join(f"{number}.jpg" for number in range(most))
        assert f"{count} damaged {names}{' …' * (count > most)} 1 It" in text
