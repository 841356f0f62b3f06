"""Networks of other packages and handwritten ones, as checked by `benchmarks.zoo`, and its oracles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from benchmarks.zoo import checks
from benchmarks.zoo.attributions import CHECKS
from benchmarks.zoo.handwritten import own, unusual
from benchmarks.zoo.networks import networks
from benchmarks.zoo.runner import Limits, examine
from benchmarks.zoo.subject import Network, Subject

SAMPLE = ["timm cait_xxs24_224", "transformers ConvNextForImageClassification", "smp Unet resnet18"]
SAMPLE += ["torchvision mobilenet_v3_small", "torchvision shufflenet_v2_x0_5"]
"""One or two networks of each package; `make zoo` has 180."""
PACKAGES = {"smp": "segmentation_models_pytorch"}
TINY = (96, 64)
OWN = {network.name: replace(network, sizes=(TINY,)) for network in own()}
UNUSUAL = {network.name: network for network in unusual()}
REFUSED = {
    "own quantized linear layers": {"grad_cam", "steady", "integrated_gradients", "deep_lift", "lrp"},
    "own autograd.Function": {"deep_lift", "lrp"},
}
"""Unsupported methods besides attention rollout, which none of them supports."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def check(network: Network, names: Iterable[str], refused: Iterable[str] = ()) -> None:
    """Check that each result is right, and that only the given checks are refused."""
    rows = list(examine(network, list(names), Limits(check=60)))
    wrong = [row for row in rows if row.verdict not in ("right", "refused")]
    assert not wrong, [f"{row.check}: {row.verdict}: {row.words} {row.trace}" for row in wrong]
    assert {row.check for row in rows if row.verdict == "refused"} == set(refused)


@pytest.mark.parametrize("name", SAMPLE)
def test_default_layer_layout_and_grad_cam_are_those_of_oracles(name: str) -> None:
    """Oracles: layers frozen, axes that rotate with the image and lit patches, a hook and autograd in float64."""
    package = name.partition(" ")[0]
    pytest.importorskip(PACKAGES.get(package, package))
    network = next(each for each in networks() if each.name == name)
    check(network if network.fixed else replace(network, sizes=(TINY,)), checks.FOR_EVERY_SIZE)


@pytest.mark.parametrize("name", list(OWN))
def test_handwritten_networks_are_correct_in_every_method_or_refused(name: str) -> None:
    """Two inputs, a dict, checkpoints, quantized layers, an own autograd.Function, repeated calls, permutations."""
    check(OWN[name], CHECKS, REFUSED.get(name, set()) | {"attention_rollout"})


@pytest.mark.sample
@pytest.mark.parametrize("name", list(UNUSUAL))
def test_unusual_networks_are_correct_or_refused(name: str) -> None:
    check(UNUSUAL[name], ["positions", "steady"], ["positions"] if name == "unusual sorted rows" else ())


# The oracles find errors


def test_wrong_positions_layouts_default_layers_and_maps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true layout is [1, 40, 12, 8], channels first; layers may be too early, or bypassed by a residual path."""

    def expect(check: str, words: str) -> None:
        with pytest.raises(checks.Wrong, match=words):
            getattr(checks, check)(subject)

    subject = Subject(OWN["own channels last in a block"], TINY)
    place = next(i for i, layer in enumerate(subject.layers) if layer.name == "end")
    for layout, grid in (("NHWC", (40, 12)), ("NCHW", (8, 12))):
        subject.layers[place] = replace(subject.layers[place], layout=layout, grid=grid)
        expect("layout", "end")
    for name, why in (("stem", "early|on every path and later"), ("last", "later|path|early")):
        subject = Subject(OWN["own channels last in a block"], TINY)
        subject.__dict__["default"] = name
        expect("default_layer", why)
    subject, right = Subject(OWN["own channels last in a block"], TINY), checks.explainers.grad_cam
    monkeypatch.setattr(checks.explainers, "grad_cam", lambda *given, **named: right(*given, **named) * 1.001)
    expect("grad_cam", "off by 0.001")
    monkeypatch.undo()
    monkeypatch.setattr(checks.explainers, "place", lambda maps, placement: maps)
    rows = [row for name in ("flip", "crop") for row in examine(UNUSUAL[f"unusual {name}"], ["positions"], Limits())]
    assert {row.verdict for row in rows} == {"wrong"}
