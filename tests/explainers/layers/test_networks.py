"""Twelve networks of other packages and handwritten ones, as checked by `benchmarks.zoo`, and its oracles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks.zoo import checks
from benchmarks.zoo.attributions import CHECKS
from benchmarks.zoo.networks import networks
from benchmarks.zoo.networks.custom import own
from benchmarks.zoo.networks.unusual import unusual
from benchmarks.zoo.runner import Limits, Row, examine, examine_all, is_refusal
from benchmarks.zoo.subject import Network, Subject
from explainers.layers.placement import Placement

SAMPLE = """
timm edgenext_xx_small, timm tiny_vit_5m_224, timm coat_lite_tiny, timm gcvit_xxtiny, timm swinv2_cr_tiny_224,
timm hiera_tiny_224, timm levit_128s, timm cait_xxs24_224, transformers ConvNextForImageClassification,
transformers SwinForImageClassification, smp Unet resnet18, smp Segformer mit_b0
"""
QUICK = {"timm cait_xxs24_224", "transformers ConvNextForImageClassification", "smp Unet resnet18"}
"""One network of each package; the others run with --slow."""
PACKAGES = {"timm": "timm", "transformers": "transformers", "smp": "segmentation_models_pytorch"}
SMALL = (160, 128)
TINY = (96, 64)
OWN = {network.name: replace(network, sizes=((96, 64),)) for network in own()}
UNUSUAL = {network.name: network for network in unusual()}
NO_GRADIENT = {"grad_cam", "steady", "integrated_gradients", "deep_lift", "lrp"}
REFUSED = {
    "own quantized linear layers": NO_GRADIENT,
    "own autograd.Function": {"deep_lift", "lrp"},
}
"""Unsupported methods besides attention rollout, which none of them supports."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def found(name: str) -> Network:
    pytest.importorskip(PACKAGES[name.partition(" ")[0]])
    network = next(each for each in networks() if each.name == name)
    return network if network.fixed else replace(network, sizes=(TINY if name in QUICK else SMALL,))


UNEXPLAINED = pytest.mark.xfail(reason="changes of stages.1 are off by 0.21 at this size; no explanation yet")


def failures(rows: Iterator[Row]) -> list[str]:
    return [f"{row.check}: {row.verdict}: {row.words} {row.trace}" for row in rows if row.verdict != "right"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK) + [UNEXPLAINED] * (name == "timm levit_128s"))
        for name in map(str.strip, SAMPLE.split(","))
    ],
)
def test_default_layer_layout_and_grad_cam_are_those_of_oracles(name: str) -> None:
    """Oracles: layers frozen, axes that rotate with the image and lit patches, a hook and autograd in float64."""
    rows = examine(found(name), checks.FOR_EVERY_SIZE, Limits(check=60))

    assert not failures(rows)


@pytest.mark.parametrize("name", list(OWN))
def test_handwritten_networks_are_correct_in_every_method_or_refused(name: str) -> None:
    """Two inputs, a dict, checkpoints, quantized layers, an own autograd.Function, repeated calls, permutations."""
    rows = list(examine(OWN[name], list(CHECKS), Limits(check=60)))

    assert not failures(row for row in rows if row.verdict != "refused")
    refused = {row.check for row in rows if row.verdict == "refused"}
    assert refused == REFUSED.get(name, set()) | {"attention_rollout"}


@pytest.mark.sample
@pytest.mark.parametrize("name", list(UNUSUAL))
def test_unusual_networks_are_correct_or_refused(name: str) -> None:
    rows = list(examine(UNUSUAL[name], ["positions", "steady"], Limits(check=60)))

    refused = {"positions"} if name == "unusual sorted rows" else set()
    assert {row.check for row in rows if row.verdict == "refused"} == refused
    assert not failures(row for row in rows if row.verdict != "refused")


def test_a_wrong_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "place", lambda self, maps: maps)
    rows = [row for name in ("flip", "crop") for row in examine(UNUSUAL[f"unusual {name}"], ["positions"], Limits())]

    assert {row.verdict for row in rows} == {"wrong"}


@pytest.fixture
def subject() -> Subject:
    return Subject(OWN["own channels last in a block"], (96, 64))


@pytest.mark.parametrize("layout, grid", [("NHWC", (40, 12)), ("NCHW", (8, 12))])
def test_a_wrong_layout_is_found(subject: Subject, layout: str, grid: tuple[int, int] | None) -> None:
    """The layout check detects errors: the true one is [1, 40, 12, 8], channels first."""
    layers = subject.layers
    place = next(i for i, layer in enumerate(layers) if layer.name == "end")
    layers[place] = replace(layers[place], layout=layout, grid=grid)

    with pytest.raises(checks.Wrong, match="end"):
        checks.layout(subject)


@pytest.mark.parametrize("name, why", [("stem", "early|on every path and later"), ("last", "later|path|early")])
def test_a_wrong_default_layer_is_found(subject: Subject, name: str, why: str) -> None:
    """The default-layer check detects errors: a layer that is too early, and one that a residual path bypasses."""
    subject.__dict__["default"] = name

    with pytest.raises(checks.Wrong, match=why):
        checks.default_layer(subject)


def test_a_wrong_map_is_found(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Grad-CAM check detects a deviation of one thousandth."""
    right = checks.explainers.grad_cam
    monkeypatch.setattr(checks.explainers, "grad_cam", lambda *given, **named: right(*given, **named) * 1.001)

    with pytest.raises(checks.Wrong, match="off by 0.001"):
        checks.grad_cam(subject)


def test_only_messages_of_the_library_with_a_remedy_are_refusals() -> None:
    """Errors of torch, and messages without advice, count as crashes."""
    network = OWN["own autograd.Function"]
    rows = {row.check: row for row in examine(network, ["lrp"], Limits())}

    assert rows["lrp"].verdict == "refused" and "Use " in rows["lrp"].words
    for error in (ValueError("Give another."), RuntimeError("Use a larger one.")):
        try:
            raise error
        except Exception as raised:
            assert not is_refusal(raised)


def _no_network(size: tuple[int, int]) -> torch.nn.Module:
    raise RuntimeError("cannot be made")


def _endless(size: tuple[int, int]) -> torch.nn.Module:
    while True:
        pass


def test_a_network_that_fails_or_never_ends_only_affects_its_own_cells() -> None:
    """A crash, the time limit of a check, and the rows of the others; one cell for each check."""
    small = OWN["own repeated block"]
    chosen = [replace(small, name="none", make=_no_network), replace(small, name="endless", make=_endless), small]

    rows = list(examine_all(chosen, ["layout"], 2, Limits(check=0.5, network=20)))

    assert {row.network: row.verdict for row in rows} == {"none": "crash", "endless": "slow", small.name: "right"}
