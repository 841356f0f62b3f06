"""The table of methods: what is measured, that a run resumes where it stopped, and the rows."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode

from benchmarks.faithfulness.cache import Cache
from benchmarks.faithfulness.measure import CONTROLS, measure, randomize
from benchmarks.faithfulness.photos import paths, photographs
from benchmarks.faithfulness.questions import QUESTIONS
from benchmarks.faithfulness.table import (
    BEGIN,
    END,
    ENOUGH,
    PAGE,
    VERDICTS,
    adjust,
    costs,
    replace_table,
    table,
    text,
    verdicts,
)
from explainers.registry import METHODS
from saliscope.zoo import Model, Preparation

SETTINGS = {"network": "red", "precision": "float32", "steps": 12}


class Red(nn.Module):
    """Two classes: the amount of saturated red in the left half, and zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(1, 2)
        self.head.weight.data = torch.tensor([[40.0], [0.0]])
        self.head.bias.data = torch.tensor([-2.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.norm(x)[:, :1, :, :12] - 0.3).relu().mean((2, 3)))


@pytest.fixture
def model() -> Model:
    preparation = Preparation(24, 24, (0.5,) * 3, (0.5,) * 3, InterpolationMode.BILINEAR)
    return Model("red", Red().eval().requires_grad_(False), ["red", "not"], preparation)


@pytest.fixture
def measured(model, tmp_path) -> Cache:
    (tmp_path / "inner").mkdir()
    for place, shade in ("a.png", 250), ("inner/b.JPG", 200), ("inner/c.JPEG", 230):
        small = Image.new("RGB", (30, 24), (10, 20, 30))
        small.paste((shade, 90, 10), (5, 6, 13, 18))
        small.save(tmp_path / place)
    cache = Cache(tmp_path / "cache.json", SETTINGS)
    names = ("integrated_gradients", "saliency", "channel_effects", "attention_rollout")
    for image in photographs(model, paths(tmp_path)):
        measure(model, image, [METHODS[name] for name in names], cache, "float32")
        randomize(model, image, [METHODS["saliency"]], cache)
    cache.save()
    return cache


def test_a_faithful_map_beats_the_controls(measured):
    found = verdicts(measured)["methods"]
    own = found["integrated_gradients"]
    assert own["n"] == 3 and own["deletion"][0] < own["insertion"][0]
    assert all(each["difference"][0] > 0 for each in own["beside"].values())
    assert own["better_than_controls"] is None, "three images are too few to conclude that it is not better"
    edges = [each["edge"]["deletion"] for each in measured.controls.values()]
    assert found["edge_control"]["deletion"][0] == pytest.approx(sum(edges) / 3, abs=1e-4)


def test_verdicts_of_the_table_are_adjusted_for_all_its_comparisons():
    """Holm: 0.02 is significant as the second of two comparisons, and not as the second of three."""

    def method(*p: float | None) -> dict:
        return {"n": 109, "beside": {str(k): {"difference": [0.1, 0.05], "p": each} for k, each in enumerate(p)}}

    found = {"a": method(0.001, 0.03), "b": {"n": 0}}
    adjust(found)
    assert found["a"]["better_than_controls"] and found["a"]["beside"]["1"]["p_adjusted"] == 0.03
    found = {"a": method(0.001, 0.03), "b": method(0.5, None)}
    adjust(found)
    assert found["a"]["beside"]["1"] == {"difference": [0.1, 0.05], "p": 0.03, "p_adjusted": 0.06, "verdict": "level"}
    assert found["a"]["better_than_controls"] is False and found["b"]["beside"]["1"]["p_adjusted"] is None


def test_the_table_has_every_method_and_reasons_for_those_without_results(measured):
    found = verdicts(measured)
    lines = table(found, {"saliency": 6.88})
    cells = {line.split("`")[1]: [cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]}
    assert set(cells) == set(METHODS)
    assert cells["saliency"][2:5] == ["6.9", "a gradient", "3"] and cells["saliency"][8]
    assert cells["channel_effects"][5] == "one value per channel, not a map"
    assert "attention" in cells["attention_rollout"][5] and cells["lrp"][5] == "not measured"
    assert cells["edge_control"][0].startswith("**") and not cells["edge_control"][7]
    assert json.loads(json.dumps(found)) == found
    page = replace_table(f"before\n{BEGIN}old\n{END}after\n", found, {})
    assert page.startswith(f"before\n{BEGIN}red, 3 images") and page.endswith(f"|\n{END}after\n")


def test_the_table_of_docs_methods_is_that_of_the_pages_verdicts():
    """If this fails after a change of only the table, run the command above the table with the same `--cache`."""
    found = json.loads(VERDICTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert page == replace_table(page, found, costs()) and VERDICTS.read_text(encoding="utf-8") == text(found)
    assert list(found["methods"]) == list(METHODS)
    for name, one in found["methods"].items():
        assert one["reads_class"] == METHODS[name].reads_class


def test_every_method_answers_one_question():
    names = [name for listed in QUESTIONS.values() for name in listed.split()]
    assert sorted(names) == sorted(METHODS)
    assert all(asked.endswith("?") for asked in QUESTIONS)


def test_a_caution_is_one_short_line():
    for each in METHODS.values():
        assert not each.caution or (each.caution.endswith(".") and len(each.caution) <= 240), each.name
        assert each.name not in CONTROLS or not each.caution


def test_cautions_agree_with_the_table():
    """A method that the table shows to be no better than the controls says so, and no other."""
    found = json.loads(VERDICTS.read_text(encoding="utf-8"))["methods"]
    measured = {name for name in METHODS if name not in CONTROLS and found[name]["n"] >= ENOUGH}
    weak = {name for name in measured if not found[name]["better_than_controls"]}
    assert {name for name in measured if METHODS[name].caution} == weak and {"saliency", "deconvnet"} <= weak
