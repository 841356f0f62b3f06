"""The ranking of methods for one image: tested maps, packed rows, messages, Stop, and the queue."""

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
from explainers.metrics.recommendation import RankedMap, Recommendation, rank_maps
from saliscope.errors import Refused
from saliscope.page import build
from saliscope.page.ranking import tab, view
from saliscope.session import engine, messages
from saliscope.session.answers import Settings, Waiting
from saliscope.session.jobs import runs
from saliscope.session.jobs.turns import turns
from saliscope.session.ranking import engine as ranking_engine
from saliscope.session.ranking import messages as ranking_messages
from saliscope.session.ranking.engine import Ranking, RankingOptions, parse_options
from saliscope.session.request import Request
from tests.saliscope.session.asking import DOG, MODEL

pytestmark = pytest.mark.usefixtures("loaded")


def evaluation(insertion: float, deletion: float, spread: float = 0.1) -> Evaluation:
    """Return the evaluation of one image; controls have 0.5 by both metrics, except edges with 0.4 and 0.6.

    Random maps have a standard deviation of 0.031, with four degrees of freedom.
    """
    numbers = {"insertion": insertion, "deletion": deletion}
    controls = {
        name: {c: torch.tensor([0.5 if c != "edge" else edge]) for c in ("random", "edge", "center")}
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
        random_values={name: 0.5 + 0.031 * torch.tensor([[-1.0, 1, 1, -1, -1, 1, 1, -1]]) for name in numbers},
    )


def ranked_map(method: str, insertion: float, deletion: float, steps: int = 20, **more: Any) -> RankedMap:
    layer = "head" if explainers.METHODS[method].takes_layer else None
    return RankedMap(method, layer, 0.25, steps, evaluation(insertion, deletion), **more)


def recommendation(*rows: RankedMap) -> Recommendation:
    names = ("deletion", "insertion")
    return Recommendation(rank_maps(rows, names), names, {"lrp at head": "Not here."}, len(rows) + 1, [1], 3.2)


def packed(found: Recommendation, loaded: Any, **more: Any) -> dict[str, Any]:
    settings = Settings(loaded, "head", None, explainers.METHODS["grad_cam"], {}, subject="s")
    value = view.ranking(Ranking(settings, Image.open(DOG).convert("RGB"), "dog", found, **more), {})
    return json.loads(json.dumps(value, allow_nan=False))


def message(value: dict[str, Any]) -> str:
    return "".join(part["text"] for part in value["parts"])


def test_rows_and_controls_are_in_the_order_of_their_difference(loaded: Any) -> None:
    """Oracle: the manually computed order."""
    full = [ranked_map("grad_cam", 0.9, 0.1), ranked_map("saliency", 0.45, 0.55), ranked_map("hires_cam", 0.2, 0.8)]
    rows = packed(recommendation(*full), loaded)["rows"]
    order = [row["id"] for row in sorted(rows, key=lambda row: row["order"])]

    # random and center have 0.5 and 0.5, edges 0.4 and 0.6
    assert order == ["grad_cam at head", "random", "center", "saliency", "edge", "hires_cam at head"]
    first = next(row for row in rows if row["id"] == "grad_cam at head")
    assert (first["order"], first["title"], first["layer"], first["method"]) == (0, "Grad-CAM", "head", "grad_cam")
    assert (first["insertion"], first["deletion"], first["difference"]) == (0.9, 0.1, 0.8)
    assert first["margin"] == pytest.approx(4.0), "0.4 better than random and center, at a spread of 0.1"
    assert first["beside"] == "Better than random maps, edge maps and a centered blob." and first["beats"]
    assert "better than random maps, edge maps and a centered blob" in first["about"][0]
    assert [row["control"] for row in rows if row.get("control")] == [True] * 3
    assert {row["difference"] for row in rows if row["id"] in ("random", "edge")} == {0.0, -0.2}


def test_controls_are_ranked_among_short_curves_if_no_full_curve_is_worse(loaded: Any) -> None:
    rows = [
        ranked_map("grad_cam", 0.9, 0.1),
        ranked_map("saliency", 0.8, 0.2, steps=5),
        ranked_map("hires_cam", 0.2, 0.8, steps=5),
    ]
    value = packed(recommendation(*rows), loaded)
    order = [row["id"] for row in sorted(value["rows"], key=lambda row: row["order"])]

    assert order == ["grad_cam at head", "saliency", "random", "center", "edge", "hires_cam at head"]
    assert {row["steps"] for row in value["rows"] if row.get("control")} == {5} and value["steps"] == [5, 20]


def test_small_maps_are_the_means_of_cells_with_their_signs(loaded: Any) -> None:
    row = packed(recommendation(ranked_map("grad_cam", 0.9, 0.1)), loaded)["rows"][0]
    cells = torch.frombuffer(bytearray(base64.b64decode(row["map"]["b64"])), dtype=torch.int8).view(16, 16)
    means = evaluation(0, 0).maps[0].view(16, 4, 16, 4).mean((1, 3))

    assert torch.equal(cells, (127 * means / means.abs().max()).round().char()) and int(cells.min()) < 0


def test_the_comparison_with_controls_and_the_agreement_of_metrics_have_messages(loaded: Any) -> None:
    pairs = ((0.5, 0.5), (0.1, 0.9), (0.9, 0.9), (0.9, 0.5), (0.62, 0.38))
    assert [ranked_map("grad_cam", *pair).verdict.sentence for pair in pairs] == [
        "Not better than random maps, edge maps or a centered blob.",
        "Worse than random maps, edge maps and a centered blob.",
        "Better and worse than random maps, edge maps and a centered blob, depending on the metric.",
        "Better than random maps, edge maps and a centered blob by insertion.",
        "Better than edge maps, not than random maps or a centered blob.",
    ]

    agreeing = [ranked_map("grad_cam", 0.9, 0.1), ranked_map("saliency", 0.8, 0.2), ranked_map("hires_cam", 0.7, 0.3)]
    divided = [ranked_map("grad_cam", 0.9, 0.3), ranked_map("saliency", 0.8, 0.2), ranked_map("hires_cam", 0.7, 0.1)]
    notes = packed(recommendation(*agreeing), loaded, left=None)["notes"]
    assert notes == ["Deletion and insertion agree on the order of the maps (rank correlation 1.00)."]
    (note,) = packed(recommendation(*divided), loaded)["notes"]
    assert "disagree on the order of the maps (rank correlation −1.00)" in note
    none = packed(recommendation(ranked_map("grad_cam", 0.5, 0.5)), loaded)["notes"]
    assert none == [ranking_messages.FEW]


def test_ranks_follow_the_difference_and_equal_maps_are_one_row(loaded: Any) -> None:
    """The mean rank of both metrics has another order; equal differences share a rank, short curves have none."""
    maps = [
        ranked_map("grad_cam", 0.9, 0.3),
        ranked_map("xgrad_cam", 0.9, 0.3, same_as="grad_cam at head"),
        ranked_map("saliency", 0.95, 0.15),
        ranked_map("hires_cam", 0.8, 0.20004),
        ranked_map("layer_cam", 0.99, 0.01, steps=5),
    ]
    rows = [row for row in packed(recommendation(*maps), loaded)["rows"] if not row.get("control")]
    order = [(row["id"], row["rank"], row["best"]) for row in sorted(rows, key=lambda row: row["order"])]
    equal = [("grad_cam at head", 2, False), ("hires_cam at head", 2, False)]
    assert order == [("saliency", 1, True), *equal, ("layer_cam at head", None, False)]
    (grad_cam,) = [row for row in rows if row["id"] == "grad_cam at head"]
    assert grad_cam["equal"] == [["xgrad_cam", "head", "XGrad-CAM at head"]]


def test_each_conclusion_follows_from_the_rows(loaded: Any) -> None:
    def said(*maps: RankedMap) -> str:
        return message(packed(recommendation(*maps), loaded)).partition(" (")[0]

    level, better = ranked_map("grad_cam", 0.52, 0.48), ranked_map("saliency", 0.9, 0.1)
    assert said(level) == "None of 1 map for dog is significantly better than all controls by both metrics"
    assert said(level, level).endswith("than all controls by both metrics, corrected for their number")
    assert said(level, better) == "Saliency is the best of 2 maps for dog, better than all controls"
    unsure = replace(ranked_map("hires_cam", 1.9, 0.0), evaluation=evaluation(1.9, 0.5))
    first = "HiResCAM at head has the largest difference of 2 maps for dog"
    assert said(unsure, better) == f"{first}, but is not better than all controls; Saliency is"
    assert said(ranked_map("guided_backprop", 0.9, 0.1)).endswith("controls, but it hardly depends on the weights")
    (row, *_) = packed(recommendation(ranked_map("guided_backprop", 0.9, 0.1)), loaded)["rows"]
    assert "hardly depends on the weights" in [label for label, _ in row["badges"]]


def test_the_status_while_running_and_at_the_end(loaded: Any) -> None:
    found = recommendation(
        ranked_map("grad_cam", 0.9, 0.1), ranked_map("xgrad_cam", 0.9, 0.1, same_as="grad_cam at head")
    )
    going = packed(found, loaded, left=6.4, fraction=0.3)
    assert (going["kind"], going["fraction"]) == ("busy", 0.3) and "notes" not in going
    assert message(going) == "3 of 3 maps tested for dog, about 7 s left"
    over = packed(found, loaded)
    best = "Grad-CAM at head is the best of 2 maps for dog, better than all controls (all 3 tested, 3 s)"
    assert message(over) == best and over["kind"] == "done"
    assert over["refused"] == [["LRP at head", "Not here."]]
    assert message(packed(found, loaded, stopped=True)).endswith("3 s, stopped)")


def test_options_of_a_script_are_checked() -> None:
    for seconds in (0, -1, 61, math.nan, math.inf, True, "10", None, [10], 10**400):
        with pytest.raises(Refused, match=r"^Invalid time limit .*\. Choose 2 to 60 seconds\.$"):
            parse_options({"seconds": seconds})
    assert parse_options({}) == RankingOptions() == parse_options({"layers": {"a": 1}, "more": 2})
    assert parse_options({"seconds": 5, "layers": "here"}) == RankingOptions(5.0, all_stages=False)


def test_the_ranking_of_an_image_equals_the_library_and_stops_at_once(loaded: Any) -> None:
    """Oracle: the results of the library for the row; Stop ends the work within a second."""
    with runs.start(None, 30.0) as run:
        steps = ranking_engine.rank(Request(DOG, model=MODEL), RankingOptions(60.0, all_stages=False), run)
        for step in steps:
            if isinstance(step, Ranking) and step.result and len(step.result.rows) >= 6:
                break
        start = time.monotonic()
        run.stop()
        last = [*steps][-1]
    assert isinstance(last, Ranking) and last.stopped and last.result and time.monotonic() - start < 5  # busy machines
    assert last.target == "German shepherd" and last.left is None and last.result.total > len(last.result.rows)
    row = next(row for row in last.result.rows if row.method == "grad_cam")
    assert row.layer == loaded.default
    images = loaded.model.prepare(Image.open(DOG).convert("RGB"))
    own = explainers.evaluate(loaded.model.network, images, "grad_cam", target=[235], steps=row.steps)
    assert row.evaluation.values["insertion"] == pytest.approx(own.values["insertion"], abs=0.02)
    assert not turns._waiting and turns._holder is None


def test_a_time_limit_too_short_for_one_map_ends_at_once_with_a_message(loaded: Any) -> None:
    start = time.monotonic()
    with runs.start(None, 60.0) as run, pytest.raises(Refused, match="Increase Seconds"):
        [*ranking_engine.rank(Request(DOG, model=MODEL), RankingOptions(0.01, all_stages=False), run)]
    assert time.monotonic() - start < 10  # computing all maps would take half a minute


def on_a_page() -> tab.Ranking:
    with gr.Blocks() as demo:
        return tab.Ranking(build.Page(demo, build.settings_panel.build(), gr.HTML(), gr.HTML()))


def test_waiting_in_the_queue_and_stopping_before_the_start_have_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = on_a_page()
    monkeypatch.setattr(tab, "from_form", lambda path, *names: Request(path, model=MODEL))
    event = SimpleNamespace(_data={"seconds": 3, "layers": "here"})
    form = (DOG, MODEL, "", "", "", None, {})
    with runs.start(None) as other, turns.enqueue(other, long=True) as holder:
        assert not [*turns.wait(holder)]
        steps = ranking.rank(event, SimpleNamespace(session_hash="somebody"), *form)
        waiting = next(steps)[ranking.table]
        assert "Waiting for another user’s run" in message(waiting)
        threading.Timer(0.2, ranking.stop_job, [SimpleNamespace(session_hash="somebody")]).start()
        (*_, last) = steps
    assert message(last[ranking.table]) == ranking_messages.STOPPED and last[ranking.table]["kind"] == "error"


def test_invalid_requests_have_messages(loaded: Any, tmp_path: Any) -> None:
    ranking = on_a_page()

    def reply(data: Any, *form: Any) -> str:
        (*_, last) = ranking.rank(SimpleNamespace(_data=data), SimpleNamespace(session_hash="x"), *form)
        return message(last[ranking.table])

    assert "Choose 2 to 60 seconds" in reply({"seconds": 1e9}, DOG, MODEL, "", "", "", None, {})
    assert reply(None, None, MODEL, "", "", "", None, {}) == messages.NO_IMAGE
    assert re.search(r"upload", reply({}, "/etc/passwd", MODEL, "", "", "", None, {}), re.I)


def test_the_subject_does_not_depend_on_method_and_layer_but_on_the_class(loaded: Any) -> None:
    def subject(**settings: Any) -> str:
        with runs.start(None) as run:
            return next(
                step.subject
                for step in engine.explain(Request(DOG, model=MODEL, **settings), run)
                if not isinstance(step, Waiting)
            )

    one = subject()
    assert one and one == subject(method="hires_cam") == subject(layer="stages.3")
    assert one != subject(target="goldfish")
