"""The method list with its badges, the map guide, costs, and the texts of findings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from explainers import Finding
from saliscope.compute import messages as page_messages
from saliscope.compute import model_cache
from saliscope.compute.answers import Answer, Settings
from saliscope.compute.channels import network
from saliscope.compute.methods import badges, costs, explanations, findings, lines, messages
from saliscope.compute.request import Request
from saliscope.page.components import view
from saliscope.page.components.list_columns import METHOD_TIME
from saliscope.page.methods import guide, picker
from saliscope.page.panel import settings as panel
from tests.saliscope.compute import asking

ROOT = Path(__file__).parents[3]
METHODS = explainers.METHODS
pytestmark = pytest.mark.usefixtures("loaded")


@pytest.fixture(scope="module")
def settings(loaded: Any) -> Settings:
    return Settings(loaded, loaded.default, None, METHODS["grad_cam"], {})


def answered(**settings: Any) -> Answer:
    """Return the answer to a request about the image of the dog."""
    return asking.answered(Request(asking.DOG, **settings))


# The lists of methods and layers


def test_the_list_has_every_method_once_with_a_cost_or_a_reason(settings: Settings, monkeypatch: Any) -> None:
    listed = picker.items(settings)
    fit = {name: columns[METHOD_TIME] for _, name, columns, more in listed if "why" not in more}
    why = {name: more["why"] for _, name, _, more in listed if "why" in more}

    assert len(listed) == len(fit) + len(why) and set(fit) | set(why) == set(METHODS)
    assert set(fit) == {each.name for each in model_cache.list_methods(settings.loaded)} != set()
    assert fit["grad_cam"] == messages.INSTANT and fit["rise"] == messages.SECONDS
    assert "attention" in why["le_grad"] and "detector" in why["d_rise"]
    assert why["channel_effects"] == messages.NO_MAP
    assert all(re.fullmatch(r"[^.(]*(\([^.]*\))?[^.]*\.", each) for each in why.values()), "one sentence"
    groups = [more["group"] for *_, more in listed]
    titles = [*lines.GROUP_TITLES.values(), messages.unavailable(len(why))]
    assert groups == sorted(groups, key=titles.index) and set(groups) == set(titles)
    # A custom method is listed by its summary, without a measured time.
    summary = "Mine: the score lost where a pixel is mine. And more."
    mine = replace(METHODS["occlusion"], name="mine", title="Mine", summary=summary)
    monkeypatch.setitem(METHODS, "mine", mine)
    ((title, _, columns, more),) = [each for each in picker.items(settings) if each[1] == "mine"]
    assert (title, columns[METHOD_TIME], more["line"]) == ("Mine", "", "the score lost where a pixel is mine.")
    assert more["line"][:-1] in guide.text(mine, False, settings)


def test_costs_of_another_network_follow_its_forward_pass(loaded: Any) -> None:
    other, known = replace(loaded, name="another"), costs.table()
    assert costs.forward(other) == costs.forward(other) > 0, "timed once"
    assert costs.forward(loaded) == known["forward"], "the network of the table is not timed again"
    assert costs.seconds("rise", loaded) == pytest.approx(known["passes"]["rise"] * known["forward"])
    takes_as_long = {"crop=whole": True, "crop=0.5,0.4": True, "size=96": False, "device=lazy:0": False}
    for changes, is_same in (takes_as_long | {"crop=whole&device=lazy:0": False}).items():
        assert costs.is_measured(replace(loaded, name=f"{loaded.name}?{changes}")) == is_same, changes
    labels = {None: "", 0.5: messages.INSTANT, 5: messages.SECONDS, 50: messages.MINUTE, 500: messages.MINUTE}
    assert {seconds: costs.badge(seconds) for seconds in labels} == labels


def test_an_estimate_that_is_wrong_by_a_factor_of_two_is_replaced(loaded: Any) -> None:
    other = replace(loaded, name="mistimed")
    estimate = costs.seconds("rise", other)
    assert estimate and not costs.correct("rise", other, 1.9 * estimate) and costs.seconds("rise", other) == estimate
    assert costs.correct("rise", other, 0.5) and costs.seconds("rise", other) == 0.5
    assert not costs.correct("rise", other, 0.4), "within a factor of two of the last run"

    assert costs.correct("grad_cam_pp", loaded, 1000.0)
    own_options = answered(model=loaded.name, method="grad_cam_pp", options={"relu": False})
    assert not own_options.is_mistimed and answered(model=loaded.name, method="grad_cam_pp").is_mistimed


def test_the_list_of_layers_has_receptive_fields_and_the_default_for_cams(loaded: Any) -> None:
    network.measure_stages(loaded)
    rows = {columns[0]: columns for _, _, columns in panel.layers(loaded)}
    assert rows["head"][3:] == ["whole image", "default for CAMs"] and next(iter(rows)) == "head"
    assert rows["stem.0"][3:] == ["", ""], "known for stages only"
    (layer,) = [layer for layer in loaded.layers if layer.name == "stages.2"]
    left, top, right, bottom = layer.receptive_field((13, 13))
    size = f"{bottom - top} × {right - left} px"
    assert rows["stages.2"] == ["stages.2", "28 × 28", "40", size, "stage"], "the same as for one layer"


# The guide to a map


@pytest.mark.parametrize("task", ["classification", "detection", "segmentation"])
def test_the_guide_has_at_most_sixty_words_for_every_method(settings: Settings, task: str) -> None:
    assert set(explanations.GUIDES) == set(METHODS) >= set(explanations.OWN_UNITS)
    loaded = settings.loaded
    settings = replace(settings, loaded=replace(loaded, model=replace(loaded.model, task=task)))
    for method in METHODS.values():
        for signed in (False, True):
            text = guide.text(method, signed, settings)
            assert ("{target}" in text) == method.reads_class, method.name
            assert method.takes_layer or "{layer}" not in text, f"{method.name} does not take a layer"
            assert task != "detection" or "logit" not in text, f"{method.name}: a detection has a score"
            text = text.replace("{target}", "word " * guide.NAME).replace("{grid}", "7 × 7")
            assert 15 <= len(text.split()) <= explanations.MOST, (method.name, text)
            assert text.endswith(".") and ".." not in text, method.name


def test_the_guide_describes_the_map() -> None:
    """The guide has the colors of signed and unsigned maps, the class, the layer and the grid of the answer."""
    plain = guide.parts(answered())
    signed = guide.parts(answered(method="hires_cam", target="goldfish", layer="stages.2"))
    free = guide.parts(answered(method="eigen_cam"))
    fine = guide.parts(answered(layer="stages.1"))
    assert [part["text"] for part in plain if part.get("strong")] == ["German shepherd"]
    assert [part["text"] for part in plain if part.get("mono")] == ["head"]
    texts = ["".join(part["text"] for part in parts) for parts in (plain, signed, free, fine)]
    assert texts[0].startswith("Bright: ") and "7 × 7" in texts[0]
    assert texts[1].startswith("Red: ") and "blue: " in texts[1] and "goldfish" in texts[1]
    assert "German shepherd" not in texts[2]
    assert "too coarse" in texts[0] and "too coarse" not in texts[3], "56 × 56 cells"


# Findings


def test_a_caution_has_a_button_for_the_recommended_method(settings: Settings) -> None:
    cautioned = [method for method in METHODS.values() if method.caution]
    assert {method.name for method in cautioned} == set(findings.RECOMMENDED)
    for method in cautioned:
        (item,) = findings.caution(replace(settings, method=method))
        instead = METHODS[item["remedy"]["method"]]
        assert instead.title.casefold() in method.caution.casefold() and not instead.caution
    assert findings.caution(settings) == []


FACTS: dict[str, list[dict[str, Any]]] = {
    "unlikely_target": [{"target": 1, "rank": 248, "of": 1000, "share": 5e-5, "top": 235, "top_share": 0.94}],
    "class_insensitive": [{"correlation": 0.991, "runner_up": 225}],
    "saturated": [{"probability": 0.9999}],
    "no_gradient": [{}, {"anywhere": True}],
    "nothing_positive": [{"lowest": -1.0, "blank": True}, {"lowest": -1.0, "blank": False}],
    "flat": [{"value": 0.0}, {"value": 0.25}],
    "nothing_spatial": [{"value": 0.1}],
    "non_finite": [{"part": part, "layer": "stages.2"} for part in ("layer", "scores", "gradient", "map")],
    "unusual_size": [{"given": 112, "trained": 224}],
    "bypass": [{"layer": "head"}, {"layer": "stages.2", "share": 0.12}],
    "lost": [{"share": 0.1}],
    "absorbed": [{"score": 9.0, "total": 8.0, "share": 1 / 9}, {"score": 9.0, "total": 10.0, "share": -1 / 9}],
    "cancelled": [{"score": 9.0, "size": 1e4}],
    "nonlinear_target": [{"start": 0.1, "score": 0.05}],
    "incomplete": [
        {"total": 8.0, "expected": 9.0, "option": "steps"},
        {"total": 8.0, "expected": 9.0},
        {"missing": 1.0, "score": 9.0},
    ],
    "token_only_gradient": [{"asked": "blocks.11", "layer": "blocks.10"}],
    "rows_depend": [{"mixing": 0.42}, {"layer": "stages.2"}],
    "decides_by_image": [{"reads": "item"}],
    "transposed": [{"rows": 12, "columns": 8, "height": 32, "width": 48}],
    "stochastic": [
        {"noise": 0.0, "is_repeatable": True},
        {"noise": 0.5, "is_repeatable": True},
        {"noise": 0.5, "is_repeatable": False},
    ],
    "largest_class": [{"label": 25, "share": 0.31}],
    "best_detection": [{"label": 25, "score": 0.93}],
    "stopped_early": [{"done": 24, "total": 960}],
    "shared_looks": [{"scored": 320, "channels": 1280}],
    "not_converged": [{"total": 8.0, "error": 0.5}],
    "search_failed": [{"score": 1.0, "empty": 2.0}, {"score": 1.0, "empty": 0.0, "other": 2.0}],
}
WITHOUT_FACTS = """
    uniform_weights unmoved_by_noise no_curvature probability_scores
    unclear_scores no_scores buffers_written no_effect baseline_suffices inactive_concept
""".split()
FACTS |= {code: [{}] for code in WITHOUT_FACTS}


@pytest.fixture(scope="module")
def step() -> Answer:
    return answered(layer="stages.4")


def test_every_finding_of_the_library_has_a_text_with_names_that_fits_on_the_page(step: Answer) -> None:
    sources = [path for path in (ROOT / "explainers").rglob("*.py") if "training" not in path.parts]
    named = re.compile(r'(?:Finding|note_finding|note_images)\(\s*"(\w+)"')
    found = [named.findall(path.read_text("utf-8")) for path in sources]
    assert {code for codes in found for code in codes} == set(findings.MESSAGES) == set(FACTS)
    for code, cases in FACTS.items():
        for facts in cases:
            item = findings.describe(Finding(code, "Message of the library: class 25, layer 'x'.", {}, facts), step)
            text = item["sentence"]
            assert "of the library" not in text, f"the text of {code} failed"
            assert text.endswith(".") and text[0].isupper() and len(text) <= page_messages.LONGEST, code
            assert not re.search(r"[Cc]lass \d|\{|'\w+'|relu=|=\d", text), text


def test_findings_of_custom_methods_keep_their_message(step: Answer) -> None:
    """The code is unknown or the facts are missing; changes that a click cannot make get no button."""
    for code in ("mine", "unlikely_target", "lost"):
        item = findings.describe(Finding(code, "Only mine.", {"model": torch.nn.Identity(), "layer": "head"}), step)
        assert item == {"sentence": "Only mine.", "remedy": {"layer": "head"}, "label": "Use layer head"}
    (item,) = view.findings(answered(target="goldfish"), 1)["items"]
    assert "goldfish has rank" in item["sentence"] and "predicts German shepherd (9" in item["sentence"]
    assert item["remedy"] == {"target": "German shepherd"} and item["label"] == "Explain German shepherd"


def test_a_class_agnostic_map_does_not_mention_the_class() -> None:
    free, own = answered(method="eigen_cam", target="goldfish"), answered(method="hires_cam", target="goldfish")
    assert "goldfish" in page_messages.file_name(own) and "goldfish" in page_messages.overlay(own, own.map)["alt"]
    for text in (
        page_messages.file_name(free),
        page_messages.overlay(free, free.map)["alt"],
        json.dumps(page_messages.answer_parts(free)),
        json.dumps(view.findings(free, 1)),
        findings.describe(Finding("flat", "…", {}, {"value": 0.0}), free)["sentence"],
    ):
        assert "goldfish" not in text and "class" not in text, text


# Badges, from the checked-in verdicts or from sample verdicts

GOOD = ("better", "better", "better")
Write = Callable[..., None]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes verdicts for methods as `python -m benchmarks.faithfulness` does."""

    def write(**methods: dict[str, Any]) -> None:
        found = {
            "network": asking.MODEL,
            "precision": "bf16",
            "steps": 12,
            "photographs": 109,
            "test": "sign-flip test",
        }
        badges.FILE.write_text(json.dumps(found | {"methods": methods}), encoding="utf-8")
        badges.table.cache_clear()

    monkeypatch.setattr(badges, "FILE", tmp_path / "verdicts.json")
    badges.table.cache_clear()
    yield write
    badges.table.cache_clear()


def verdict(*beside: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a method with these verdicts against random maps, edge maps and a centered blob."""
    places = {control: {"verdict": each} for control, each in zip(("random", "edge", "center"), beside, strict=True)}
    found = {"n": 109, "beside": places, "better_than_controls": beside == GOOD}
    return found | {"logit": 0.1, "cascade": 0.1, "depends_on_weights": True} | more


def texts(name: str, loaded: Any) -> list[str]:
    return [text for text, _ in badges.badges(METHODS[name], loaded)]


def test_a_method_that_is_no_better_than_controls_has_a_badge_that_names_them(loaded: Any, sample: Write) -> None:
    sample(
        grad_cam=verdict(*GOOD),
        saliency=verdict("better", "worse", "level"),
        smooth_grad=verdict("level", "worse", "worse"),
        rise=verdict("level", "level", "level", n=0),
        edge_control=verdict("better", "level", "worse"),
    )
    assert texts("grad_cam", loaded) == texts("rise", loaded) == [], "better, or not measured"
    sentence = "not better than random maps, worse than edge maps and a centered blob on this network"
    assert texts("smooth_grad", loaded) == [sentence]
    assert texts("edge_control", loaded) == [messages.NO_CLASS], "a control itself"
    ((_, tip),) = badges.badges(METHODS["saliency"], loaded)
    assert tip == (
        f"Insertion minus deletion over 109 images with {asking.MODEL}: better than random maps, not than a "
        "centered blob, worse than edge maps (sign-flip test, p < 0.05, adjusted for the number of comparisons)."
    )
    other = replace(loaded, name="resnet18")
    assert texts("saliency", other) == [f"not better than a centered blob, worse than edge maps on {asking.MODEL}"]

    listed = {name: more for _, name, _, more in picker.items(Settings(loaded, "", None, METHODS["lrp"], {}))}
    assert listed["smooth_grad"]["badges"][0][0] == sentence and "badges" not in listed["grad_cam"]


def test_a_method_that_fails_the_randomization_test_has_a_badge(loaded: Any, sample: Write) -> None:
    sample(
        guided_backprop=verdict(*GOOD, logit=0.999, cascade=0.34, depends_on_weights=False),
        eigen_cam=verdict(*GOOD, logit=1.0, cascade=0.3, depends_on_weights=False),
        fem=verdict(*GOOD, logit=1.0, cascade=-0.67, depends_on_weights=False),
    )
    assert texts("guided_backprop", loaded) == ["hardly depends on the weights"]
    assert texts("eigen_cam", loaded) == [messages.NO_CLASS], "without the last layer, it depends on earlier layers"
    assert texts("fem", loaded) == [messages.NO_CLASS, messages.NO_WEIGHTS]
    tip = dict(badges.badges(METHODS["fem"], loaded))[messages.NO_WEIGHTS]
    assert "1.00 for the last layer, −0.67 for all layers" in tip and asking.MODEL in tip


def test_without_a_valid_table_only_class_agnostic_methods_have_a_badge(loaded: Any, sample: Write) -> None:
    """Oracle: `reads_class` of the registry."""
    for content in (None, "{"):
        if content:
            badges.FILE.write_text(content, encoding="utf-8")
            badges.table.cache_clear()
        for method in METHODS.values():
            assert texts(method.name, loaded) == ([] if method.reads_class else ["class-agnostic"])
