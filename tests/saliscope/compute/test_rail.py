"""The network diagram: packed drawings, messages, and the computation of norms."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from explainers import SkipConnection, network_blocks
from saliscope.compute import engine, results_cache
from saliscope.compute.answers import Answer, Stages
from saliscope.compute.model_cache import load
from saliscope.compute.rail import description, messages, network, norms
from saliscope.compute.request import Request
from saliscope.page.components import view as page_view
from saliscope.page.rail import rail
from tests.saliscope.compute.asking import DOG, MODEL, SMALL, inputs, last_steps, steps_of
from tests.support.nets import random_images, residual

pytestmark = pytest.mark.usefixtures("loaded")


def test_the_drawing_has_every_layer_and_block() -> None:
    packed = network.pack(network_blocks(residual().eval(), random_images()))
    names = [layer[0] for layer in packed["layers"]]
    firsts = [block["first"] for block in packed["blocks"]]
    assert firsts == [sum(block["count"] for block in packed["blocks"][:k]) for k in range(len(firsts))]
    aliases = {**{name: k for k, name in enumerate(names)}, **packed["aliases"]}
    assert aliases["layer1"] == aliases["layer1.relu#1"], "one tensor with two names"
    conv, last = packed["layers"][names.index("conv1")], packed["layers"][aliases["fc"]]
    assert conv[1:5] == [12, 16, 6, "Conv2d"] and (conv[7], last[7]) == (True, False)
    assert packed["whys"][last[5]].startswith("No map: the output 7 has no spatial")
    assert packed["arcs"] == [[1.0, 2.0, 0], [3.0, 4.0, 0]]

    for reason in messages.WHY:
        assert "{" not in messages.why(reason, load(MODEL).layers[-1])


def test_of_too_many_arcs_the_longest_and_shortest_of_each_end_are_drawn() -> None:
    skips = [SkipConnection(start, end) for end in range(60) for start in range(end)]
    drawn = network.limit_arcs(skips)
    assert len(skips) > network.MOST_ARCS >= len(drawn)
    assert {(skip.start, skip.end) for skip in drawn} >= {(0, 59), (58, 59), (0, 1)}
    assert network.limit_arcs(skips[:10]) == sorted(skips[:10], key=lambda skip: skip.start - skip.end)


def test_the_norms_are_those_of_the_answer(new_dog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the gradient from autograd. They are the same for a copy of the image, and for any layer and method."""
    question = Request(new_dog, MODEL)
    answer = last_steps(question, stages=False)[Answer]
    first = last_steps(question, norms.measure)[norms.Norms]
    assert results_cache.subject(answer.settings, question) == first.key
    names, packed = [name for name, *_ in network.drawing(load(MODEL))["layers"]], rail.pack_norms(first)
    assert len(packed["norms"]) == len(names) and packed["name"] == "German shepherd"
    net, images = inputs(new_dog)
    outputs: list[torch.Tensor] = []
    hook = net.get_submodule("stages.2").register_forward_hook(lambda m, i, out: outputs.append(out))
    with torch.enable_grad():
        score = net(images.clone().requires_grad_())[0, answer.target]
        (gradient,) = torch.autograd.grad(score, outputs[0])
    hook.remove()
    assert packed["norms"][names.index("stages.2")] == pytest.approx(float(gradient.norm()), rel=1e-3)
    assert packed["norms"][names.index("classifier")] is None

    monkeypatch.setattr(norms.network_calls, "run", lambda *_, **__: pytest.fail("computed again"))
    copy = Path(new_dog).with_name("copy.jpg")
    copy.write_bytes(Path(new_dog).read_bytes())
    again = last_steps(Request(str(copy), MODEL, layer="stages.2", method="saliency"), norms.measure)[norms.Norms]
    assert (again.key, again.norms) == (first.key, first.norms)


def test_another_class_has_another_key() -> None:
    changes: list[dict[str, str]] = [{"target": "tabby"}, {"layer": "stages.1"}, {"method": "saliency"}]
    requests = [Request(DOG, MODEL, **{"target": "goldfish", **change}) for change in changes]
    settings = [engine.resolve(request) for request in requests]
    keys = [results_cache.subject(each, request) for each, request in zip(settings, requests, strict=True)]
    assert keys[0] != keys[1] == keys[2] and DOG not in "".join(keys)


def test_the_maps_of_all_blocks_are_grad_cam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: Grad-CAM computed at two blocks separately. Cells are averaged. If a block has no map, stages have."""
    question = Request(DOG, MODEL, method="saliency")
    found = last_steps(question)
    answer, stages = found[Answer], found[Stages]
    drawn = network.drawing(load(MODEL))
    outs = [drawn["layers"][block["out"]] for block in drawn["blocks"]]
    assert list(stages.maps) == [name for name, height, *_ in outs if height] and len(stages.maps) == 18
    for name in ("stem", "stages.4.1"):
        expected = explainers.grad_cam(*inputs(DOG), answer.target, layer=name)[0]
        torch.testing.assert_close(stages.maps[name], expected, rtol=1e-3, atol=1e-5)

    packed = page_view.stages(stages, 3)
    stem, head = packed["stages"][0]["map"], packed["stages"][-1]["map"]
    assert (stem["h"], stem["w"], head["h"], head["w"]) == (56, 56, 7, 7)
    raw = torch.frombuffer(bytearray(base64.b64decode(stem["b64"])), dtype=torch.float16).float() * stem["scale"]
    means = stages.maps["stem"].unflatten(0, (56, 2)).unflatten(2, (56, 2)).mean((1, 3))
    torch.testing.assert_close(raw.view(56, 56), means, rtol=1e-2, atol=1e-6)
    assert (packed["name"], packed["score"], packed["unit"]) == ("German shepherd", "94%", "logit")

    sweep = engine.network_calls.sweep

    def refuse_blocks(name: str, images: torch.Tensor, target: Any, names: list[str]) -> Any:
        if "stages.4.1" in names:
            raise explainers.NoSpatialOutput("stages.4.1 has no map.")
        return sweep(name, images, target, names)

    monkeypatch.setattr(engine.network_calls, "sweep", refuse_blocks)
    only = list(last_steps(question)[Stages].maps)
    assert only == ["stages.0", "stages.1", "stages.2", "stages.4", "head"]


def test_the_table_is_that_of_the_library() -> None:
    """Oracle: `explainers.describe`, except for the times."""
    first = steps_of(description.describe, Request(model=SMALL))[-1]
    assert isinstance(first, description.Described)
    net, images = inputs(name=SMALL)
    expected, packed = explainers.describe(net, torch.zeros_like(images)), rail.pack_description(first)
    rows = [(layer.name, layer.kind, layer.is_leaf) for layer in expected.layers]
    assert [(row[0], row[1], row[8]) for row in packed["rows"]] == rows
    row = next(row for row in packed["rows"] if row[0] == "stem.1")
    assert row[2:6] + row[7:] == ["32 × 32 × 32", "864", "884,736", "0.131", "3 × 3", True]
    assert packed["totals"].startswith(f"{expected.parameters:,} parameters · {expected.multiply_adds:,} multiply-adds")
    assert packed["csv"].count("\n") == len(expected.layers) + 1
