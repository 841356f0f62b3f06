"""Networks of other packages and handwritten ones, as checked by `benchmarks.zoo`, and its oracles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from benchmarks.zoo import checks
from benchmarks.zoo.attributions import CHECKS
from benchmarks.zoo.networks import networks
from benchmarks.zoo.networks.custom import own
from benchmarks.zoo.networks.unusual import unusual
from benchmarks.zoo.runner import Limits, examine, examine_all, is_refusal
from benchmarks.zoo.subject import Network, Subject

SAMPLE = """
timm edgenext_xx_small, timm tiny_vit_5m_224, timm coat_lite_tiny, timm gcvit_xxtiny, timm swinv2_cr_tiny_224,
timm hiera_tiny_224, timm levit_128s, timm cait_xxs24_224, transformers ConvNextForImageClassification,
transformers SwinForImageClassification, smp Unet resnet18, smp Segformer mit_b0,
torchvision densenet121, torchvision googlenet, torchvision mobilenet_v3_small, torchvision shufflenet_v2_x0_5,
torchvision efficientnet_b0, torchvision regnet_y_400mf, torchvision mnasnet0_5, torchvision convnext_tiny,
torchvision swin_t, torchvision maxvit_t, torchvision VisionTransformer
"""
QUICK = {"timm cait_xxs24_224", "transformers ConvNextForImageClassification", "smp Unet resnet18"}
QUICK |= {"torchvision mobilenet_v3_small", "torchvision shufflenet_v2_x0_5"}
"""One or two networks of each package; the others run with --slow."""
PACKAGES = {"smp": "segmentation_models_pytorch"}
TINY, SMALL = (96, 64), (160, 128)
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


UNEXPLAINED = pytest.mark.xfail(reason="changes of stages.1 are off by 0.21 at this size; no explanation yet")


def check(network: Network, names: Iterable[str], refused: Iterable[str] = ()) -> None:
    """Check that each result is right, and that only the given checks are refused."""
    rows = list(examine(network, list(names), Limits(check=60)))
    wrong = [row for row in rows if row.verdict not in ("right", "refused")]
    assert not wrong, [f"{row.check}: {row.verdict}: {row.words} {row.trace}" for row in wrong]
    assert {row.check for row in rows if row.verdict == "refused"} == set(refused)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK) + [UNEXPLAINED] * (name == "timm levit_128s"))
        for name in map(str.strip, SAMPLE.split(","))
    ],
)
def test_default_layer_layout_and_grad_cam_are_those_of_oracles(name: str) -> None:
    """Oracles: layers frozen, axes that rotate with the image and lit patches, a hook and autograd in float64."""
    package = name.partition(" ")[0]
    pytest.importorskip(PACKAGES.get(package, package))
    network = next(each for each in networks() if each.name == name)
    sizes = network.sizes if network.fixed else (TINY if name in QUICK else SMALL,)
    check(replace(network, sizes=sizes), checks.FOR_EVERY_SIZE)


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


def test_only_messages_of_the_library_with_a_remedy_are_refusals() -> None:
    """Errors of torch, and messages without advice, count as crashes."""
    (row,) = [row for row in examine(OWN["own autograd.Function"], ["lrp"], Limits()) if row.check == "lrp"]
    assert row.verdict == "refused" and "Use " in row.words
    for error in (ValueError("Give another."), RuntimeError("Use a larger one.")):
        with pytest.raises(type(error)) as raised:
            raise error
        assert not is_refusal(raised.value)


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
