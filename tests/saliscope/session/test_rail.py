"""The network rail: packed drawings, messages, and the computation of norms."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from explainers.layers.blocks.partition import Skip, network_blocks
from saliscope.images import examples
from saliscope.page.components import view as page_view
from saliscope.page.rail import view
from saliscope.session import engine
from saliscope.session.answers import Answer, Stages
from saliscope.session.jobs import runs
from saliscope.session.model_cache import load
from saliscope.session.rail import description, messages, network, norms
from saliscope.session.request import Request
from tests.saliscope.session.asking import MODEL, last_steps
from tests.support.nets import random_images, residual

DOG = next(iter(examples.all_examples().values()))


@pytest.fixture
def ready(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the cache of norms."""
    monkeypatch.setattr(norms, "_known", type(norms._known)())


def measured(request: Request) -> norms.Norms:
    found: norms.Norms = last_steps(request, norms.measure)[norms.Norms]
    return found


def test_the_drawing_has_every_layer_and_block() -> None:
    net = residual().eval()
    packed = network.pack(network_blocks(net, random_images()))

    names = [layer[0] for layer in packed["layers"]]
    firsts = [block["first"] for block in packed["blocks"]]
    assert firsts == [sum(block["count"] for block in packed["blocks"][:k]) for k in range(len(firsts))]
    aliases = {**{name: k for k, name in enumerate(names)}, **packed["aliases"]}
    assert aliases["layer1"] == aliases["layer1.relu#1"], "one tensor with two names"
    conv = packed["layers"][names.index("conv1")]
    assert conv[1:5] == [12, 16, 6, "Conv2d"] and conv[7] is True
    assert packed["layers"][aliases["fc"]][7] is False
    assert packed["whys"][packed["layers"][aliases["fc"]][5]].startswith("No map: the output 7 has no spatial")
    assert packed["arcs"] == [[1.0, 2.0, 0], [3.0, 4.0, 0]]


def test_every_reason_has_a_message() -> None:
    layer = load(MODEL).layers[-1]
    assert messages.why("", layer) == ""
    for reason in messages.WHY:
        message = messages.why(reason, layer)
        assert message.endswith(".") and "{" not in message


def test_of_too_many_arcs_the_longest_and_shortest_of_each_end_are_drawn() -> None:
    skips = [Skip(start, end) for end in range(60) for start in range(end)]
    drawn = network.limit_arcs(skips)

    assert len(skips) > network.MOST_ARCS >= len(drawn)
    assert {(skip.start, skip.end) for skip in drawn} >= {(0, 59), (58, 59), (0, 1)}
    assert network.limit_arcs(skips[:10]) == sorted(skips[:10], key=lambda skip: skip.start - skip.end)


def test_the_norms_are_those_of_the_answer_and_computed_once(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a copy of the example with another path. Oracle: the gradient from autograd."""
    question = Request(str(DOG.path), MODEL)
    answer, _ = answered(question)
    wanted = view.identify(answer, str(question.image))
    first = measured(question)
    packed = view.norms(first)
    monkeypatch.setattr(norms.network_calls, "run", lambda *_, **__: pytest.fail("computed again"))
    again = measured(
        Request(str(shutil.copy(DOG.path, tmp_path / "copy.jpg")), MODEL, layer="stages.2", method="saliency")
    )

    assert wanted == {"key": first.key, "chosen": "head", "note": ""}
    assert again.key == first.key and again.norms == first.norms
    names = [name for name, *_ in network.drawing(load(MODEL))["layers"]]
    assert len(packed["norms"]) == len(names) and packed["name"] == "German shepherd"
    net = load(MODEL).model.network
    _, _, images = engine.load_input(answer.settings, question)
    outputs: list[torch.Tensor] = []
    hook = net.get_submodule("stages.2").register_forward_hook(lambda m, i, out: outputs.append(out))
    with torch.enable_grad():
        score = net(images.clone().requires_grad_())[0, answer.target]
        (gradient,) = torch.autograd.grad(score, outputs[0])
    hook.remove()
    assert packed["norms"][names.index("stages.2")] == pytest.approx(float(gradient.norm()), rel=1e-3)
    assert packed["norms"][names.index("classifier")] is None


def answered(request: Request) -> tuple[Answer, Stages]:
    """Return the answer and the maps of all blocks."""
    steps = last_steps(request)
    return steps[Answer], steps[Stages]


def test_the_maps_of_all_blocks_are_grad_cam(ready: None) -> None:
    """Oracle: Grad-CAM computed at two blocks separately."""
    answer, stages = answered(Request(str(DOG.path), MODEL, method="saliency"))

    drawn = network.drawing(load(MODEL))
    outs = [drawn["layers"][block["out"]] for block in drawn["blocks"]]
    assert list(stages.maps) == [name for name, height, *_ in outs if height] and len(stages.maps) == 18
    _, _, images = engine.load_input(answer.settings, Request(str(DOG.path), MODEL))
    for name in ("stem", "stages.4.1"):
        expected = explainers.grad_cam(load(MODEL).model.network, images, answer.target, layer=name)[0]
        torch.testing.assert_close(stages.maps[name], expected, rtol=1e-3, atol=1e-5)


def test_if_a_block_has_no_map_the_stages_still_have(ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = engine.network_calls.sweep

    def refuse_blocks(name: str, images: torch.Tensor, target: Any, names: list[str]) -> Any:
        if "stages.4.1" in names:
            raise explainers.NoSpatialOutput("stages.4.1 has no map.")
        return sweep(name, images, target, names)

    monkeypatch.setattr(engine.network_calls, "sweep", refuse_blocks)

    assert list(answered(Request(str(DOG.path), MODEL))[1].maps) == [
        "stages.0",
        "stages.1",
        "stages.2",
        "stages.4",
        "head",
    ]


def test_the_packed_maps_average_cells_and_name_what_they_show(ready: None) -> None:
    answer, stages = answered(Request(str(DOG.path), MODEL))
    packed = page_view.stages(stages, 3)

    stem, head = packed["stages"][0]["map"], packed["stages"][-1]["map"]
    assert (stem["h"], stem["w"], head["h"], head["w"]) == (56, 56, 7, 7)
    raw = torch.frombuffer(bytearray(base64.b64decode(stem["b64"])), dtype=torch.float16).float() * stem["scale"]
    means = stages.maps["stem"].unflatten(0, (56, 2)).unflatten(2, (56, 2)).mean((1, 3))
    torch.testing.assert_close(raw.view(56, 56), means, rtol=1e-2, atol=1e-6)
    assert (packed["name"], packed["score"], packed["unit"]) == ("German shepherd", "94%", "logit")
    assert packed["subject"] == answer.settings.subject != ""


def test_another_class_has_another_key(ready: None) -> None:
    settings = engine.resolve(Request(str(DOG.path), MODEL, target="tabby"))
    other = engine.resolve(Request(str(DOG.path), MODEL, target="goldfish", layer="stages.1"))
    same = engine.resolve(Request(str(DOG.path), MODEL, target="goldfish", method="saliency"))
    keys = [norms.key_of(str(DOG.path), each, each.names) for each in (settings, other, same)]

    assert keys[0] != keys[1] == keys[2]
    assert str(DOG.path) not in "".join(keys)


def test_norms_whose_squares_underflow_in_float32_are_not_zero() -> None:
    """Oracle: every layer multiplies by 1e-6, so norms decrease by that factor; layers without a gradient have 0."""

    class Fading(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(1, 1, 1, bias=False) for _ in range(6))
            self.apart = torch.nn.Identity()
            for layer in self.layers:
                torch.nn.init.constant_(layer.weight, 1e-6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            self.apart(x.detach() * 2)
            return x.sum((2, 3))

    names = [*(f"layers.{k}" for k in range(6)), "apart"]
    found = norms.layer_norms(Fading().eval(), torch.rand(1, 1, 5, 5), 0, names)

    assert [found[f"layers.{k}"] for k in range(6)] == pytest.approx(
        [5 * 10 ** (-6.0 * (5 - k)) for k in range(6)], rel=1e-4
    )
    assert found["apart"] == 0


def test_the_table_is_that_of_the_library(ready: None) -> None:
    """Oracle: `explainers.describe`, except for the times; the table is measured once for each network."""
    with runs.start(None) as run:
        first, again = ([*description.describe(Request(model=MODEL), run)][-1] for _ in range(2))
    assert isinstance(first, description.Described) and isinstance(again, description.Described)
    model = load(MODEL).model
    expected = explainers.describe(model.network, torch.zeros(1, 3, *model.size))
    packed = view.description(first)

    assert again.description is first.description
    assert [(row[0], row[1], row[8]) for row in packed["rows"]] == [
        (layer.name, layer.kind, layer.is_leaf) for layer in expected.layers
    ]
    row = next(row for row in packed["rows"] if row[0] == "stem.1")
    assert row[2:6] + row[7:] == ["32 × 112 × 112", "864", "10,838,016", "1.606", "3 × 3", True]
    assert packed["totals"].startswith(f"{expected.parameters:,} parameters · {expected.multiply_adds:,} multiply-adds")
    assert packed["csv"].count("\n") == len(expected.layers) + 1
