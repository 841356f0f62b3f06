"""The ranking of methods for one picture, without a browser: what is tried, how it is packed and said, Stop, turns."""

from __future__ import annotations

import base64
import json
import math
import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
import torch
from PIL import Image

import explainers
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.recommendation import Recommendation, Tried, ranked
from ui import examples, page, words
from ui.engine import engine, model_cache, runs
from ui.engine.messages import Refused, Settings, Waiting
from ui.engine.request import Request
from ui.engine.turns import turns
from ui.ranking import engine as ranking_engine
from ui.ranking import packing, tab
from ui.ranking import words as ranking_words
from ui.ranking.engine import Ranking, Wish, received

DOG = str(examples.all_examples()["dog"].path)
MODEL = "efficientnet_lite0"


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Any:
    model_cache.ready.set()
    return model_cache.load(MODEL)


def evaluation(insertion: float, deletion: float, spread: float = 0.1) -> Evaluation:
    """Of one image whose controls have 0.5 by both metrics, but edges, which have 0.4 and 0.6."""
    numbers = {"insertion": insertion, "deletion": deletion}
    controls = {
        name: {c: torch.tensor([0.5 if c != "edge" else edge]) for c in ("random", "edge", "centre")}
        for name, edge in (("insertion", 0.4), ("deletion", 0.6))
    }
    return Evaluation(
        {name: torch.tensor([value]) for name, value in numbers.items()},
        controls,
        {name: torch.tensor([spread]) for name in numbers},
        {},
        {},
        {name: [""] for name in numbers},
        torch.arange(64.0 * 64).view(1, 64, 64) - 2000,
        None,
        None,
        [1],
    )


def tried(method: str, insertion: float, deletion: float, steps: int = 20, **more: Any) -> Tried:
    layer = "head" if explainers.METHODS[method].takes_layer else None
    return Tried(method, layer, 0.25, steps, evaluation(insertion, deletion), **more)


def recommendation(*rows: Tried) -> Recommendation:
    names = ("deletion", "insertion")
    return Recommendation(ranked(rows, names), names, {"lrp at head": "Not here."}, len(rows) + 1, [1], 3.2)


def packed(found: Recommendation, loaded: Any, **more: Any) -> dict[str, Any]:
    settings = Settings(loaded, "head", None, explainers.METHODS["grad_cam"], {}, subject="s")
    value = packing.ranking(Ranking(settings, Image.open(DOG).convert("RGB"), "dog", found, **more), {})
    return json.loads(json.dumps(value, allow_nan=False))


def said(value: dict[str, Any]) -> str:
    return "".join(part["text"] for part in value["parts"])


def test_rows_are_in_the_library_s_order_with_the_controls_at_their_places(loaded: Any) -> None:
    """Oracle: the order and the controls' places by hand."""
    full = [tried("grad_cam", 0.9, 0.1), tried("saliency", 0.45, 0.55), tried("hires_cam", 0.2, 0.8)]
    rows = packed(recommendation(*full), loaded)["rows"]
    order = [row["id"] for row in sorted(rows, key=lambda row: row["order"])]

    # random and centre have 0.5 and 0.5: second by both; edges 0.4 and 0.6: third by both
    assert order == ["grad_cam at head", "random", "centre", "saliency", "edge", "hires_cam at head"]
    first = next(row for row in rows if row["id"] == "grad_cam at head")
    assert (first["order"], first["title"], first["layer"], first["method"]) == (0, "Grad-CAM", "head", "grad_cam")
    assert (first["insertion"], first["deletion"], first["difference"]) == (0.9, 0.1, 0.8)
    assert first["margin"] == pytest.approx(4.0), "0.4 from random and centre, at a spread of 0.1"
    assert first["beside"] == "better than all three controls" and first["beats"]
    assert "better than random, edges and the centre blob" in first["about"][0]
    assert [row["control"] for row in rows if row.get("control")] == [True] * 3
    assert {row["difference"] for row in rows if row["id"] in ("random", "edge")} == {0.0, -0.2}


def test_controls_stand_among_short_curves_where_no_full_one_is_worse(loaded: Any) -> None:
    rows = [tried("grad_cam", 0.9, 0.1), tried("saliency", 0.8, 0.2, steps=5), tried("hires_cam", 0.2, 0.8, steps=5)]
    value = packed(recommendation(*rows), loaded)
    order = [row["id"] for row in sorted(value["rows"], key=lambda row: row["order"])]

    assert order == ["grad_cam at head", "saliency", "random", "edge", "centre", "hires_cam at head"]
    assert {row["steps"] for row in value["rows"] if row.get("control")} == {5} and value["steps"] == [5, 20]


def test_small_maps_are_the_means_of_cells_with_their_signs(loaded: Any) -> None:
    row = packed(recommendation(tried("grad_cam", 0.9, 0.1)), loaded)["rows"][0]
    cells = torch.frombuffer(bytearray(base64.b64decode(row["map"]["b64"])), dtype=torch.int8).view(16, 16)
    means = evaluation(0, 0).maps[0].view(16, 4, 16, 4).mean((1, 3))

    assert torch.equal(cells, (127 * means / means.abs().max()).round().char()) and int(cells.min()) < 0


def test_the_place_among_controls_and_the_metrics_agreement_in_words(loaded: Any) -> None:
    beside = [
        ranking_words.beside(tried("grad_cam", *pair)) for pair in ((0.5, 0.5), (0.1, 0.9), (0.9, 0.9), (0.9, 0.5))
    ]
    assert beside == [
        "level with all three controls",
        "worse than all three controls",
        "metrics divided on all three controls",
        "better by one metric alone than all three controls",
    ]
    assert (
        ranking_words.beside(tried("grad_cam", 0.65, 0.35))
        == "better than edges; level with random maps and the centre blob"
    )

    agreeing = [tried("grad_cam", 0.9, 0.1), tried("saliency", 0.8, 0.2), tried("hires_cam", 0.7, 0.3)]
    divided = [tried("grad_cam", 0.9, 0.3), tried("saliency", 0.8, 0.2), tried("hires_cam", 0.7, 0.1)]
    notes = packed(recommendation(*agreeing), loaded, left=None)["notes"]
    assert notes == [
        "Deletion and insertion agree about the order (rank correlation 1.00). Both are won by Grad-CAM at head."
    ]
    (note,) = packed(recommendation(*divided), loaded)["notes"]
    assert "disagree about the order (rank correlation −1.00)" in note
    assert note.endswith("Deletion is won by HiResCAM at head, insertion by Grad-CAM at head.")
    none = packed(recommendation(tried("grad_cam", 0.5, 0.5)), loaded)["notes"]
    assert none == [ranking_words.NONE_BEATS, ranking_words.FEW]


def test_while_it_runs_and_at_its_end_in_words(loaded: Any) -> None:
    found = recommendation(tried("grad_cam", 0.9, 0.1), tried("xgrad_cam", 0.9, 0.1, same_as="grad_cam at head"))
    going = packed(found, loaded, left=6.4, fraction=0.3)
    assert (going["kind"], going["fraction"]) == ("busy", 0.3) and "notes" not in going
    assert said(going) == "3 of 3 tried for dog, about 7 s left"
    over = packed(found, loaded)
    assert (
        said(over) == "Grad-CAM at head is the best of 2 maps for dog (all 3 were tried, 3 s)"
        and over["kind"] == "done"
    )
    assert over["refused"] == [["LRP at head", "Not here."]]
    assert said(packed(found, loaded, stopped=True)).endswith("3 s, stopped)")
    twin = next(row for row in over["rows"] if row["id"] == "xgrad_cam at head")
    assert twin["about"][-1] == "the same map as Grad-CAM at head"


def test_a_row_is_packed_once_for_all_reports_that_hold_it(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    once = packing._packed

    def counted(row: Tried) -> Any:
        nonlocal count
        count += 1
        return once(row)

    monkeypatch.setattr(packing, "_packed", counted)
    known: packing.Packed = {}
    row = tried("grad_cam", 0.9, 0.1, steps=5)
    for _ in range(3):
        packing._row(row, 0, known)
    packing._row(replace(row, steps=20), 0, known)
    assert count == 2


@pytest.mark.parametrize(
    "seconds", [0, -1, 61, math.nan, math.inf, True, "10", None, [10], 10**400], ids=lambda given: repr(given)[:5]
)
def test_a_time_that_cannot_be_is_refused_in_a_sentence(seconds: Any) -> None:
    with pytest.raises(Refused, match=r"is not possible\. Give 2 to 60 seconds\.$"):
        received({"seconds": seconds})


def test_what_else_a_script_may_send_is_the_default() -> None:
    assert received({}) == Wish() == received({"layers": {"a": 1}, "more": 2})
    assert received({"seconds": 5, "layers": "here"}) == Wish(5.0, every=False)


def test_the_ranking_of_a_picture_names_the_library_s_best_and_stops_at_once(loaded: Any) -> None:
    """Oracle: the library's own numbers for the row; Stop ends the work within a second."""
    with runs.begin(None, 30.0) as run:
        steps = ranking_engine.rank(Request(DOG, model=MODEL), Wish(60.0, every=False), run)
        for step in steps:
            if isinstance(step, Ranking) and step.found and len(step.found.rows) >= 6:
                break
        began = time.monotonic()
        run.stop()
        last = [*steps][-1]
    assert isinstance(last, Ranking) and last.stopped and last.found and time.monotonic() - began < 5  # busy machines
    assert last.whom == "German shepherd" and last.left is None and last.found.total > len(last.found.rows)
    row = next(row for row in last.found.rows if row.method == "grad_cam")
    assert row.layer == loaded.default
    images = loaded.model.prepare(Image.open(DOG).convert("RGB"))
    own = explainers.evaluate(loaded.model.network, images, "grad_cam", target=[235], steps=row.steps)
    assert row.evaluation.values["insertion"] == pytest.approx(own.values["insertion"], abs=0.02)
    assert not turns._waiting and turns._holder is None


def test_a_time_too_short_for_one_map_ends_at_once_with_a_sentence(loaded: Any) -> None:
    began = time.monotonic()
    with runs.begin(None, 60.0) as run, pytest.raises(Refused, match="Give more seconds"):
        [*ranking_engine.rank(Request(DOG, model=MODEL), Wish(0.01, every=False), run)]
    assert time.monotonic() - began < 10  # every map uncompared would be half a minute


def on_a_page() -> tab.Ranking:
    with gr.Blocks() as demo:
        return tab.Ranking(page.Page(demo, page.picture_panel.build(), gr.HTML(), gr.HTML()))


def test_it_waits_for_its_turn_in_words_and_a_stop_before_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = on_a_page()
    monkeypatch.setattr(tab, "from_form", lambda picture, *names: Request(picture, model=MODEL))
    event = SimpleNamespace(_data={"seconds": 3, "layers": "here"})
    form = (DOG, MODEL, "", "", "", None, {})
    with runs.begin(None) as other, turns.place(other, long=True) as holder:
        assert not [*turns.wait(holder)]
        steps = ranking.rank(event, SimpleNamespace(session_hash="somebody"), *form)
        waiting = next(steps)[ranking.table]
        assert "Waiting for another visitor’s run" in said(waiting)
        threading.Timer(0.2, ranking.stopped, [SimpleNamespace(session_hash="somebody")]).start()
        (*_, last) = steps
    assert said(last[ranking.table]) == ranking_words.STOPPED and last[ranking.table]["kind"] == "error"


def test_refusals_come_as_sentences(loaded: Any, tmp_path: Any) -> None:
    ranking = on_a_page()

    def asked(data: Any, *form: Any) -> str:
        (*_, last) = ranking.rank(SimpleNamespace(_data=data), SimpleNamespace(session_hash="x"), *form)
        return said(last[ranking.table])

    assert "Give 2 to 60 seconds" in asked({"seconds": 1e9}, DOG, MODEL, "", "", "", None, {})
    assert asked(None, None, MODEL, "", "", "", None, {}) == words.NO_PICTURE
    assert re.search(r"upload", asked({}, "/etc/passwd", MODEL, "", "", "", None, {}), re.I)


def test_a_subject_is_the_same_by_every_method_and_layer_and_another_for_another_class(loaded: Any) -> None:
    def subject(**asked: Any) -> str:
        with runs.begin(None) as run:
            return next(
                step.subject
                for step in engine.explain(Request(DOG, model=MODEL, **asked), run)
                if not isinstance(step, Waiting)
            )

    one = subject()
    assert one and one == subject(method="hires_cam") == subject(layer="stages.3")
    assert one != subject(target="goldfish")


def test_every_place_of_the_table_changes_the_settings_and_the_address() -> None:
    config = page.build().get_config_file()
    names = {each["id"]: each["props"].get("elem_id", "") for each in config["components"]}
    tables = {place: name for place, name in names.items() if name in ("hl-ranking", "hl-ranking-compare")}
    assert set(tables.values()) == {"hl-ranking", "hl-ranking-compare"} <= set(page.picture_panel.ASKS)
    for kind in ("select", "submit", "stop"):
        targets = [target for each in config["dependencies"] for target in each["targets"]]
        assert {tables[place] for place, event in targets if event == kind and place in tables} == set(tables.values())
