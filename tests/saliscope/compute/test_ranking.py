"""The ranking of methods for one image: tested maps, packed rows, messages, Stop, and the queue."""

from __future__ import annotations

import base64
import json
import math
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

import explainers
from explainers import Evaluation, RankedMap, Recommendation
from explainers.metrics.recommendation import rank_maps
from saliscope.compute.answers import Settings
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.turns import turns
from saliscope.compute.ranking import engine as ranking_engine
from saliscope.compute.ranking import messages as ranking_messages
from saliscope.compute.ranking.engine import Ranking, RankingOptions, parse_options
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.page.events import HANDLERS, Ask
from saliscope.page.ranking import parts, ranking, view
from tests.saliscope.compute.asking import DOG, MEDIUM, inputs, text_of

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
    value["rows"].sort(key=lambda row: row["order"])
    return json.loads(json.dumps(value, allow_nan=False))


def test_rows_and_controls_are_in_the_order_of_their_difference(loaded: Any) -> None:
    """Oracle: by hand. Controls are among the short curves if no full curve is worse."""
    maps = [ranked_map("grad_cam", 0.9, 0.1), ranked_map("saliency", 0.45, 0.55), ranked_map("hires_cam", 0.2, 0.8)]
    first, *rows = packed(recommendation(*maps), loaded)["rows"]
    # random and center have 0.5 and 0.5, edges 0.4 and 0.6
    assert [row["id"] for row in rows] == ["random", "center", "saliency", "edge", "hires_cam at head"]
    assert (first["order"], first["insertion"], first["deletion"], first["difference"]) == (0, 0.9, 0.1, 0.8)
    assert first["margin"] == pytest.approx(4.0), "0.4 better than random and center, at a spread of 0.1"
    assert first["beside"] == "Better than random maps, edge maps and a centered blob." and first["beats"]
    assert [row["difference"] for row in rows if row.get("control")] == [0.0, 0.0, -0.2]
    cells = torch.frombuffer(bytearray(base64.b64decode(first["map"]["b64"])), dtype=torch.int8).view(16, 16)
    means = evaluation(0, 0).maps[0].view(16, 4, 16, 4).mean((1, 3))
    assert torch.equal(cells, (127 * means / means.abs().max()).round().char()) and int(cells.min()) < 0

    short = [ranked_map("saliency", 0.8, 0.2, steps=5), ranked_map("hires_cam", 0.2, 0.8, steps=5)]
    value = packed(recommendation(maps[0], *short), loaded)
    order = [row["id"] for row in value["rows"]]
    assert order == ["grad_cam at head", "saliency", "random", "center", "edge", "hires_cam at head"]
    assert {row["steps"] for row in value["rows"] if row.get("control")} == {5} and value["steps"] == [5, 20]


def test_the_agreement_of_metrics_has_a_message(loaded: Any) -> None:
    def notes(*deletions: float) -> list[str]:
        given = zip(("grad_cam", "saliency", "hires_cam"), (0.9, 0.8, 0.7), deletions, strict=False)
        return packed(recommendation(*(ranked_map(*each) for each in given)), loaded)["notes"]

    assert notes(0.1, 0.2, 0.3) == ["Deletion and insertion agree on the order of the maps (rank correlation 1.00)."]
    (note,) = notes(0.3, 0.2, 0.1)
    assert "disagree on the order of the maps (rank correlation −1.00)" in note
    assert "insertion partly agree on the order" in notes(0.1, 0.3, 0.2)[0]
    assert notes(0.5) == [ranking_messages.FEW]


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
    order = [(row["id"], row["rank"], row["best"]) for row in rows]
    equal = [("grad_cam at head", 2, False), ("hires_cam at head", 2, False)]
    assert order == [("saliency", 1, True), *equal, ("layer_cam at head", None, False)]
    assert rows[1]["equal"] == [["xgrad_cam", "head", "XGrad-CAM at head"]]


def test_the_status_while_running_and_the_conclusion_at_the_end(loaded: Any) -> None:
    def said(*maps: RankedMap, **more: Any) -> str:
        return text_of(packed(recommendation(*maps), loaded, **more)["parts"])

    level, better = ranked_map("grad_cam", 0.52, 0.48), ranked_map("saliency", 0.9, 0.1)
    unsure = replace(ranked_map("hires_cam", 1.9, 0.0), evaluation=evaluation(1.9, 0.5))
    guided = ranked_map("guided_backprop", 0.9, 0.1)
    first = "HiResCAM at head has the largest difference of 2 maps for dog"
    for maps, conclusion in (
        ((level,), "None of 1 map for dog is significantly better than all controls by both metrics (all 2 tested"),
        ((level, level), "than all controls by both metrics, corrected for their number ("),
        ((level, better), "Saliency is the best of 2 maps for dog, better than all controls (all 3 tested, 3 s)"),
        ((unsure, better), f"{first}, but is not better than all controls; Saliency is ("),
        ((guided,), "controls, but it hardly depends on the weights ("),
    ):
        assert conclusion in said(*maps), maps
    (row, *_) = packed(recommendation(guided), loaded)["rows"]
    assert "hardly depends on the weights" in [label for label, _ in row["badges"]]

    going = packed(recommendation(level, better), loaded, left=6.4, fraction=0.3)
    assert (going["kind"], going["fraction"]) == ("busy", 0.3) and "notes" not in going
    assert text_of(going["parts"]) == "3 of 3 maps tested for dog, about 7 s left"
    assert said(level, stopped=True).endswith("3 s, stopped)")
    over = packed(recommendation(level), loaded)
    assert over["kind"] == "done" and over["refused"] == [["LRP at head", "Not here."]]


def test_options_of_a_script_are_checked() -> None:
    for seconds in (0, -1, 61, math.nan, math.inf, True, "10", None, [10], 10**400):
        with pytest.raises(Refused, match=r"^Invalid time limit .*\. Choose 2 to 60 seconds\.$"):
            parse_options({"seconds": seconds})
    assert parse_options({}) == RankingOptions() == parse_options({"layers": {"a": 1}, "more": 2})
    assert parse_options({"seconds": 5, "layers": "here"}) == RankingOptions(5.0, all_stages=False)


def test_the_ranking_of_an_image_equals_the_library_and_stops_at_once(loaded: Any) -> None:
    """Oracle: the results of the library for the row; Stop ends the work within a second."""
    with runs.start(None, 30.0) as run:
        steps = ranking_engine.rank(Request(DOG, model=MEDIUM), RankingOptions(60.0, all_stages=False), run)
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
    own = explainers.evaluate(*inputs(DOG, MEDIUM), "grad_cam", target=[235], steps=row.steps)
    assert row.evaluation.values["insertion"] == pytest.approx(own.values["insertion"], abs=0.02)

    with runs.start(None, 60.0) as run, pytest.raises(Refused, match="Increase Seconds"):
        [*ranking_engine.rank(Request(DOG, model=MEDIUM), RankingOptions(0.01, all_stages=False), run)]


def test_waiting_and_stopping_have_messages() -> None:
    asked = Ask("hl-ranking", "submit", {"seconds": 3, "layers": "here"}, {"image": "example:dog"}, "somebody")
    with runs.start(None) as other, turns.enqueue(other, long=True) as holder:
        assert not [*turns.wait(holder)]
        steps = (step[parts.RANKING] for step in ranking.rank(asked))
        assert "Waiting for another user’s run" in text_of(next(steps)["parts"])
        threading.Timer(0.2, HANDLERS["hl-ranking", "stop"], [asked]).start()
        (*_, last) = steps
    assert text_of(last["parts"]) == ranking_messages.STOPPED and last["kind"] == "error"
