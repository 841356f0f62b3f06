"""The table of methods, the gallery, and how often chance maps are judged better or worse than random maps."""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image

import explainers
from benchmarks import gallery
from benchmarks.faithfulness import measure as results
from benchmarks.faithfulness.measure import CONTROLS
from benchmarks.significance import evaluations
from explainers.registry import METHODS
from saliscope.zoo import load_model


def test_verdicts_of_the_table_are_adjusted_for_all_its_comparisons():
    """Holm: 0.02 is significant as the second of two comparisons, and not as the second of three."""

    def method(*p: float | None) -> dict:
        return {"n": 109, "beside": {str(k): {"difference": [0.1, 0.05], "p": each} for k, each in enumerate(p)}}

    found = {"a": method(0.001, 0.03), "b": {"n": 0}}
    results.adjust(found)
    assert found["a"]["better_than_controls"] and found["a"]["beside"]["1"]["p_adjusted"] == 0.03
    found = {"a": method(0.001, 0.03), "b": method(0.5, None)}
    results.adjust(found)
    assert found["a"]["beside"]["1"] == {"difference": [0.1, 0.05], "p": 0.03, "p_adjusted": 0.06, "verdict": "level"}
    assert found["a"]["better_than_controls"] is False and found["b"]["beside"]["1"]["p_adjusted"] is None


def test_the_table_of_docs_methods_is_that_of_the_pages_verdicts():
    """If this fails after a change of only the table, run the command above the table with the same `--cache`."""
    found = json.loads(results.VERDICTS.read_text(encoding="utf-8"))
    page = results.PAGE.read_text(encoding="utf-8")
    assert page == results.replace_table(page, found)
    assert results.VERDICTS.read_text(encoding="utf-8") == results.text(found)
    assert list(found["methods"]) == list(METHODS)
    for name, one in found["methods"].items():
        assert one["reads_class"] == METHODS[name].reads_class


def test_cautions_agree_with_the_table():
    """A method that the table shows to be no better than the controls says so, and no other."""
    found = json.loads(results.VERDICTS.read_text(encoding="utf-8"))["methods"]
    measured = {name for name in METHODS if name not in CONTROLS and found[name]["n"] >= results.ENOUGH}
    weak = {name for name in measured if not found[name]["better_than_controls"]}
    assert {name for name in measured if METHODS[name].caution} == weak and {"saliency", "deconvnet"} <= weak


@pytest.mark.slow
def test_chance_maps_are_seldom_judged_better_or_worse_than_random_maps() -> None:
    """The documented rate is 2.3% of 6,012; Holm's correction allows 5%."""
    found = [evaluation for _, form, evaluation in evaluations(1000, 1, 8) if form != "pixels"]
    judged = [{each["random"].verdict for each in one.comparisons.values()} for one in found]
    assert len(judged) > 600 and sum(bool(each & {"better", "worse"}) for each in judged) <= 0.05 * len(judged)


# The gallery

MOST = 1_500_000
"""The largest size of all images together, in bytes."""


def test_every_method_has_an_entry_and_the_text_is_current() -> None:
    """If this fails, run `python -m benchmarks.gallery --only` with the methods whose maps changed, or `--text`."""
    stored = gallery.PAGE.read_text(encoding="utf-8")
    images = [gallery.open_image(name) for name in gallery.IMAGES]
    assert stored == gallery.page(gallery.predictions(load_model(), images))
    assert sorted(re.findall(r"^`(\w+)` ·", stored, re.M)) == sorted(explainers.METHODS)


def test_the_images_are_those_of_the_page_and_small() -> None:
    shown = set(re.findall(r"\]\(gallery/(\w+)\.webp\)", gallery.PAGE.read_text(encoding="utf-8")))
    files = {path.stem: path for path in gallery.FOLDER.iterdir()}
    assert shown == set(files)
    assert "grad_cam" in shown and "d_rise" not in shown, "the built-in network detects no objects"
    assert len({Image.open(path).size for path in files.values()}) == 1
    assert sum(path.stat().st_size for path in files.values()) <= MOST
