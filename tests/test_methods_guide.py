"""The picker's lines, "What am I seeing?", costs, and findings in a visitor's words: without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from explainers.findings import Finding, note_finding, recording
from ui import words as page_words
from ui.engine import engine, model_cache, packing, runs
from ui.engine.messages import Answer, Settings
from ui.engine.request import Request
from ui.methods import costs, findings, guide, lines, picker, seen, words

ROOT = Path(__file__).parents[1]
DOG = str(ROOT / "assets" / "examples" / "dog.jpg")
METHODS = explainers.METHODS.values()


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Any:
    """The default network, as the page has it."""
    model_cache.start()
    model_cache.wanted.set()
    model_cache.ready.wait()
    return model_cache.load(model_cache.first_model())


@pytest.fixture(scope="module")
def settings(loaded: Any) -> Settings:
    return Settings(loaded, loaded.default, None, explainers.METHODS["grad_cam"], {})


def answered(**asked: Any) -> Answer:
    """The page's answer to a question about the dog."""
    with runs.begin(None) as run:
        steps = [step for step in engine.explain(Request(DOG, **asked), run, stages=False) if isinstance(step, Answer)]
    return steps[-1]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> explainers.Method:
    """A method that nobody wrote words for."""
    known = explainers.METHODS["occlusion"]
    mine = replace(known, name="mine", title="Mine", summary="Mine: the score lost where a pixel is mine. And more.")
    monkeypatch.setitem(explainers.METHODS, "mine", mine)
    return mine


# The list


def test_every_method_has_a_line_a_question_and_a_measured_cost() -> None:
    listed = {name: line for group in lines.LINES.values() for name, (line, _) in group.items()}

    assert set(listed) == set(explainers.METHODS)
    assert sum(map(len, lines.LINES.values())) == len(listed), "a method in two groups"
    assert all(line.endswith((".", "?")) and len(line) <= 75 for line in listed.values())
    assert set(costs.table()["passes"]) == set(explainers.METHODS), "python -m ui.methods.measure --only NAME"
    assert list(lines.LINES) == list(lines.QUESTIONS)


def test_the_offer_has_every_method_once_with_a_badge_or_the_reason(settings: Settings) -> None:
    offer = json.loads(picker.offered(settings)["offer"])
    fit, others = ({each["name"]: each for each in offer[part]} for part in ("methods", "others"))

    assert not set(fit) & set(others) and set(fit) | set(others) == set(explainers.METHODS)
    assert [each.name for each in model_cache.list_methods(settings.loaded)] != [] and set(fit) == {
        each.name for each in model_cache.list_methods(settings.loaded)
    }
    assert {each["cost"] for each in fit.values()} == {words.INSTANT, words.SECONDS, words.MINUTE}
    assert fit["grad_cam"]["cost"] == words.INSTANT and fit["rise"]["cost"] == words.SECONDS
    assert "attention" in others["le_grad"]["why"] and "detector" in others["d_rise"]["why"]
    assert others["channel_effects"]["why"] == words.NO_MAP
    assert all(re.fullmatch(r"[^.(]*(\([^.]*\))?[^.]*\.", each["why"]) for each in others.values()), "one sentence"
    groups = [each["group"] for each in offer["methods"]]
    assert groups == sorted(groups, key=list(offer["groups"]).index)


def test_an_added_method_is_listed_by_its_summary(settings: Settings, added: explainers.Method) -> None:
    offer = json.loads(picker.offered(settings)["offer"])
    (mine,) = [each for each in offer["methods"] if each["name"] == "mine"]

    assert (mine["group"], mine["line"]) == (lines.COVERED, "the score lost where a pixel is mine.")
    assert mine["cost"] == "", "it was never measured"


def test_costs_of_another_network_follow_its_own_forward_pass(loaded: Any) -> None:
    other = replace(loaded, name="another")
    calls = []
    hook = loaded.model.network.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        own, again = costs.forward(other), costs.forward(other)
    finally:
        hook.remove()
        costs._own.pop("another")

    assert own == again > 0 and len(calls) == 1, "timed once"
    assert costs.forward(loaded) == costs.table()["forward"], "the table's own network is not timed again"
    assert costs.seconds("rise", loaded) == pytest.approx(costs.table()["passes"]["rise"] * costs.table()["forward"])
    assert [costs.badge(taken) for taken in (None, 0.5, 5, 50, 500)] == [
        "", words.INSTANT, words.SECONDS, words.MINUTE, words.MINUTE,
    ]  # fmt: skip


# What am I seeing?


@pytest.mark.parametrize("task", ["classification", "detection", "segmentation"])
@pytest.mark.parametrize("signed", [False, True])
def test_the_guide_has_at_most_sixty_words_for_every_method(settings: Settings, signed: bool, task: str) -> None:
    """With the longest name that is shown, and for each kind of network."""
    assert set(seen.SEEN) == set(explainers.METHODS)
    assert set(seen.OWN_UNITS) <= set(explainers.METHODS)
    model = replace(settings.loaded.model, task=task)
    settings = replace(settings, loaded=replace(settings.loaded, model=model))
    longest = guide._short("German shepherd, German shepherd dog, German police dog, alsatian " * 3)
    for method in METHODS:
        text = guide.text(method, signed, settings).replace("{whom}", longest).replace("{grid}", "7 × 7")
        assert len(text.split()) <= seen.MOST, (method.name, text)
        assert len(text.split()) >= 15 and text.endswith(".") and ".." not in text, method.name
        assert ("{whom}" in guide.text(method, signed, settings)) == method.reads_class, method.name
        assert method.takes_layer or "{layer}" not in text, f"{method.name} has no layer"
        assert task != "detection" or "logit" not in text, f"{method.name}: a detection has a score"


def test_the_guide_says_what_is_on_the_map() -> None:
    """The colours of a map with and without signs, the class, the layer and the cells of this very answer."""
    plain = guide.parts(answered())
    signed = guide.parts(answered(method="hires_cam", target="goldfish", layer="stages.2"))
    free = guide.parts(answered(method="eigen_cam"))

    assert [part["text"] for part in plain if part.get("strong")] == ["German shepherd"]
    assert [part["text"] for part in plain if part.get("mono")] == ["head"]
    texts = ["".join(part["text"] for part in parts) for parts in (plain, signed, free)]
    assert texts[0].startswith("Bright: ") and "7 × 7" in texts[0] and "logits" in texts[0]
    assert texts[1].startswith("Red: ") and "blue: " in texts[1] and "goldfish" in texts[1] and "stages.2" in texts[1]
    assert "German shepherd" not in texts[2] and "No class is asked" in texts[2]


def test_an_added_method_is_explained_by_its_summary(settings: Settings, added: explainers.Method) -> None:
    text = guide.text(added, False, settings)

    assert "the score lost where a pixel is mine" in text and "logits per pixel" in text
    assert len(text.split()) <= seen.MOST


# Findings


def test_a_note_keeps_its_figures() -> None:
    with recording() as record:
        note_finding("lost", "10% was lost.", picture=0, share=0.1)

    assert record.findings == [(0, Finding("lost", "10% was lost.", {}, {"share": 0.1}))]


def test_an_improbable_class_is_said_by_name_and_its_remedy_is_one() -> None:
    """The remedy holds an index, which the page's settings cannot: it was dropped, and the button did nothing."""
    (item,) = packing.findings(answered(target="goldfish"), 1)["items"]

    assert "goldfish comes as number" in item["sentence"] and "sees German shepherd here (9" in item["sentence"]
    assert not re.search(r"[Cc]lass \d", item["sentence"]) and "e-" not in item["sentence"]
    assert item["remedy"] == {"target": "German shepherd"} and item["label"] == "Explain German shepherd"


def test_a_caution_has_a_button_for_what_it_recommends(settings: Settings) -> None:
    cautioned = [method for method in METHODS if method.caution]

    assert {method.name for method in cautioned} == set(findings.INSTEAD)
    for method in cautioned:
        (item,) = findings.caution(replace(settings, method=method))
        instead = explainers.METHODS[item["remedy"]["method"]]
        assert instead.title.casefold() in method.caution.casefold() and not instead.caution
        assert item["label"] == f"Use {instead.title}"
    assert findings.caution(settings) == []


def noted() -> set[str]:
    """The codes of all findings about maps, as the library's sources write them."""
    sources = [path for path in (ROOT / "explainers").rglob("*.py") if "training" not in path.parts]
    found = [re.findall(r'(?:Finding|note_finding)\(\s*"(\w+)"', path.read_text("utf-8")) for path in sources]
    return {code for codes in found for code in codes}


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
    "absorbed": [{"score": 9.0, "total": 8.0}],
    "incomplete": [
        {"total": 8.0, "expected": 9.0, "option": "steps"},
        {"total": 8.0, "expected": 9.0},
        {"missing": 1.0, "score": 9.0},
    ],
    "token_only_gradient": [{"asked": "blocks.11", "layer": "blocks.10"}],
    "shared_looks": [{"scored": 320, "channels": 1280}],
    "search_failed": [{"score": 1.0, "empty": 2.0}],
    "uniform_weights": [{}],
    "unmoved_by_noise": [{}],
    "no_curvature": [{}],
    "no_effect": [{}],
}


@pytest.fixture(scope="module")
def step() -> Answer:
    return answered(layer="stages.4")


def test_every_finding_of_the_library_has_words_here() -> None:
    assert noted() == set(findings.SENTENCES) == set(FACTS)


@pytest.mark.parametrize("code", sorted(FACTS))
def test_a_finding_names_classes_and_layers_and_fits_its_place(step: Answer, code: str) -> None:
    for facts in FACTS[code]:
        item = findings.said(Finding(code, "What the library says: class 25, layer 'x'.", {}, facts), step)
        sentence = item["sentence"]
        assert "library says" not in sentence, "the words for it failed"
        assert sentence.endswith(".") and sentence[0].isupper() and len(sentence) <= page_words.LONGEST
        assert not re.search(r"[Cc]lass \d|\{|'\w+'|relu=|=\d", sentence), sentence


def test_findings_of_others_are_said_as_they_are(step: Answer) -> None:
    """A code of its own, or one of these without its figures; what no click can change gets no button."""
    for code in ("mine", "unlikely_target", "lost"):
        item = findings.said(Finding(code, "Mine alone.", {"model": torch.nn.Identity(), "layer": "head"}), step)
        assert item == {"sentence": "Mine alone.", "remedy": {"layer": "head"}, "label": "Use layer head"}


def test_a_map_of_no_class_says_nothing_of_one() -> None:
    """Neither in its file's name, its alternative text, its status line, nor in a finding."""
    free, own = answered(method="eigen_cam", target="goldfish"), answered(method="hires_cam", target="goldfish")
    blank = Finding("nothing_positive", "…", {}, {"lowest": -1.0, "blank": False})

    assert "goldfish" in page_words.file_name(own) and "goldfish" in page_words.overlay(own, own.map)["alt"]
    for said in (
        page_words.file_name(free),
        page_words.overlay(free, free.map)["alt"],
        json.dumps(page_words.answer_parts(free)),
        json.dumps(packing.findings(free, 1)),
        findings.said(blank, free)["sentence"],
        findings.said(Finding("flat", "…", {}, {"value": 0.0}), free)["sentence"],
    ):
        assert "goldfish" not in said and "class" not in said, said


def test_figures_survive_a_file(tmp_path: Path) -> None:
    answer = answered(target="goldfish").explanation
    answer.save(str(tmp_path / "map.npz"))

    assert explainers.Explanation.load(str(tmp_path / "map.npz")).findings[0][0].facts == answer.findings[0][0].facts
