"""Everything on a pretended accelerator: the CPU's results, on the model's device.

Every method runs without float64, as on Apple's MPS, on the network with convolutions, and a few on the other kinds of
networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS, METRICS, Contrast, Probability, unit
from tests.explainers.hooks.test_blocks import BLOCKS, recorded
from tests.explainers.methods.test_videos import volumes_network
from tests.explainers.metrics.test_metrics_contracts import SMALL as SMALL_METRICS
from tests.support.calls import NAMES, small
from tests.support.dense_nets import Detection, Segmentation
from tests.support.nets import Written, random_images, residual
from tests.support.pretended_device import WITH_FLOAT64, WITHOUT_FLOAT64, PretendedTensor, pretended_devices
from tests.support.token_nets import vit

Case = tuple[nn.Module, Tensor, Any]
Make = Callable[[], Case]
Compute = Callable[[nn.Module, Tensor, Any], Any]
MASK = torch.zeros(24, 24).index_fill_(0, torch.arange(4, 14), 1.0)
BOX = torch.tensor([[6.0, 4.0, 22.0, 20.0]])

# An optimization amplifies differences of rounding, and so do third powers near a denominator of 0.
ROUNDING = {"extremal_perturbation": 1e-2, "grad_cam_pp": 1e-4}
CHEAPER = {"steps": 4, "components": 2, "segments": 9}


def convolutions() -> Case:
    return residual().float(), random_images(2, height=8, width=12).float(), [2, 0]


def transformer() -> Case:
    return vit(2).float(), random_images(1, height=64, width=64).float(), 2


def segmentation() -> Case:
    torch.manual_seed(0)
    return Segmentation().eval(), torch.rand(2, 3, 24, 24), explainers.MaskScores(MASK, 1)


def detection() -> Case:
    image = torch.full((1, 3, 32, 32), 0.3)
    image[:, :, 4:20, 6:22] = torch.tensor([0.9, 0.0, 0.0]).view(3, 1, 1)
    return Detection().eval(), image, explainers.BoxScores(BOX, 1)


def volumes() -> Case:
    return volumes_network().float(), torch.rand(2, 3, 4, 12, 16), [2, 0]


KINDS: dict[Make, list[str]] = {
    convolutions: NAMES,
    transformer: "grad_cam lrp attention_heads attention_rollout transformer_attribution le_grad grad_eclip".split(),
    segmentation: "grad_cam grad_cam_pp saliency full_grad occlusion".split(),
    detection: "grad_cam saliency lrp d_rise".split(),
    volumes: "grad_cam saliency smooth_grad lrp occlusion rise".split(),
}


def cheap(name: str, make: Make) -> dict[str, Any]:
    """Options that make a call cheap; path integrals on the first network choose their points themselves."""
    chosen = small(name) | {key: value for key, value in CHEAPER.items() if key in METHODS[name].options}
    if make is convolutions and METHODS[name].options.get("steps") and METHODS[name].options["steps"].default is None:
        del chosen["steps"]
    return chosen


def placed(make: Make, device: torch.device) -> Case:
    """Return a network and images on a device; the target stays on the CPU."""
    network, images, target = make()
    return network.to(device), images.to(device), target


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a result, also in its tables and fields."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def assert_same(found: Any, expected: Any, device: torch.device | None, share: float = 1e-5, case: str = "") -> None:
    """The tensors are the same up to a share of their largest value, and on the device."""
    pairs = [*zip(tensors(found), tensors(expected), strict=True)]
    assert pairs, case
    for own, other in pairs:
        assert device is None or own.device == device, case
        assert own.dtype == other.dtype and own.shape == other.shape, case
        near = share * float(other.abs().nan_to_num().amax() if other.numel() else 0.0)
        torch.testing.assert_close(own.cpu(), other, rtol=0, atol=near, equal_nan=True, msg=case or None)


def check(make: Make, compute: Compute, tables: bool = False) -> tuple[Any, Any]:
    """Compare the results on both devices with that of the CPU, and return the last two; tables are on the CPU."""
    expected = compute(*make())
    with pretended_devices():
        for device in (WITH_FLOAT64, WITHOUT_FLOAT64):
            found = compute(*placed(make, device))
            assert_same(found, expected, None if tables else device)
    return found, expected


@pytest.mark.parametrize("make", KINDS)
def test_every_method_gives_the_map_of_the_cpu(make: Make) -> None:
    def compute(name: str, network: nn.Module, images: Tensor, target: Any) -> Tensor:
        return METHODS[name](network, images, target if METHODS[name].reads_class else None, **cheap(name, make))

    ours = make()
    expected = {name: compute(name, *ours) for name in KINDS[make]}
    with pretended_devices():
        theirs = placed(make, WITHOUT_FLOAT64)
        for name, wanted in expected.items():
            assert_same(compute(name, *theirs), wanted, WITHOUT_FLOAT64, ROUNDING.get(name, 2e-5), name)
        assert_same(compute("grad_cam", *placed(make, WITH_FLOAT64)), expected["grad_cam"], WITH_FLOAT64)


TARGETS: dict[str, Any] = {
    "none": None,
    "function": lambda scores: scores[:, 1] - scores[:, 0],
    "contrast": Contrast(2, 0),
    "probability": Probability(2),
    "log_probability": explainers.LogProbability([2, 1]),
    "similarity": explainers.Similarity(torch.arange(1.0, 8)),
    "unit": unit("layer1", 2, at=(3, 3)),
    "strongest": unit("layer1", 2, at="max"),
    "through": explainers.Through(2, "layer2", [1]),
}


def test_every_target_gives_the_gradient_of_the_cpu() -> None:
    network, images, _ = convolutions()
    with pretended_devices():
        moved = placed(convolutions, WITHOUT_FLOAT64)
        for name, target in TARGETS.items():
            found = explainers.saliency(moved[0], moved[1], target)
            assert_same(found, explainers.saliency(network, images, target), WITHOUT_FLOAT64, case=name)


def _evaluate(network: nn.Module, images: Tensor, target: Any) -> Any:
    maps = explainers.explain("saliency", network, images, target)
    options: Any = {"options": SMALL_METRICS, "steps": 4, "controls": False, "precision": "float32"}
    box = torch.tensor([[2, 2, 9, 9], [1, 1, 8, 8]])
    found = explainers.evaluate(network, images, maps, metrics=list(METRICS), region=box, **options)
    assert all(METRICS[name].title in str(found) for name in found.values)
    return found.values


def _randomize(network: nn.Module, images: Tensor, target: Any) -> Any:
    found = explainers.randomization_test(network, images, "grad_cam", target=target, seeds=1)
    return [found.signed, found.magnitude]


def _recommend(network: nn.Module, images: Tensor, target: Any) -> Any:
    # One method without a budget that could end it: the rows do not depend on the clock.
    chosen: Any = {"methods": ["eigen_cam"], "layers": ["layer2"], "budget": 1000, "steps": 4, "precision": "float32"}
    found = explainers.recommend(network, images, target=target, **chosen)
    return [row.evaluation.values for row in found.rows]


def _fused(network: nn.Module, images: Tensor, target: Any) -> Any:
    return explainers.fuse(explainers.sweep("grad_cam_pp", network, images, target), size=tuple(images.shape[-2:]))


def _intervened(network: nn.Module, images: Tensor, target: Any) -> Any:
    values = "mean", explainers.Scale(2), explainers.AddNoise(0.5), explainers.Swap(images.flip(0))
    return [explainers.intervene(network, images, "layer2", channels=[0, 2], value=value).after for value in values]


def _compared(network: nn.Module, images: Tensor, target: Any) -> Any:
    other = Written(lambda self, x: self.net(x.flip(-1)), net=network)
    found = explainers.compare_models(network, other, images)
    return [torch.as_tensor(each).cpu() for each in (found.changed, found.similarity, found.map_correlations)]


def _erased(network: nn.Module, images: Tensor, target: Any) -> Any:
    found = explainers.smallest_region(network, images, "saliency", goal="change")
    return [found.mask.float(), found.fraction]


def _traced(network: nn.Module, images: Tensor, target: Any) -> Any:
    tokens, x = (each.to(images.device) for each in transformer()[:2])
    found = (
        explainers.trace_value(network, images[:1], "layer1", channel=2, cell=(3, 3)),
        explainers.trace_attention(tokens, x[:1], "encoder.layers.encoder_layer_1", head=1, query=2, key=3),
    )
    return [torch.tensor([each.value, each.computed, *(step.after for step in each.steps)]) for each in found]


CALLS: dict[str, Callable[[nn.Module, Tensor, Any], Any]] = {
    "explain": lambda *call: explainers.explain("grad_cam_pp", *call),
    "evaluate": _evaluate,
    "recommend": _recommend,
    "randomization_test": _randomize,
    "smooth": lambda *call: explainers.smooth("grad_cam", augment=True, samples=3)(*call),
    "sweep": _fused,
    "feature_factors": lambda *call: explainers.feature_factors(*call, components=2),
    "full_gradients": explainers.full_gradients,
    "intervene": _intervened,
    "patch_effects": lambda network, images, target: explainers.patch_effects(network, images, images.flip(0), target),
    "compare_models": _compared,
    "smallest_region": _erased,
    "trace": _traced,
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_gives_the_result_of_the_cpu(call: str) -> None:
    tables = call in ("randomization_test", "compare_models", "trace")
    found, expected = check(convolutions, CALLS[call], tables)
    if call == "explain":
        assert found.statistics == expected.statistics and found.findings == expected.findings


@pytest.mark.parametrize("block", BLOCKS)
def test_hooks_in_training_act_as_on_the_cpu(block: str) -> None:
    def compute(network: nn.Module, images: Tensor, _: Any) -> Any:
        with BLOCKS[block](network.train()) as found:
            network(images).square().sum().backward()
        return [*recorded(found), *(parameter.grad for parameter in network.parameters() if parameter.requires_grad)]

    check(convolutions, compute, tables=block == "record activations")


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_statistics_of_gradients_are_accurate_without_float64(scale: float, mean: float) -> None:
    """The squares neither overflow nor vanish, and the spread around a large mean does not cancel."""
    noise = 1e-3 * torch.randn(5000, generator=torch.Generator().manual_seed(0))
    gradient = (mean + noise) * scale

    def statistics(tensor: Tensor) -> dict[str, float]:
        with explainers.record_gradients({"x": tensor.requires_grad_()}) as log:
            (tensor * gradient.to(tensor.device)).sum().backward()
        return dict(log.rows[0].statistics)

    expected = statistics(torch.zeros(5000))
    with pretended_devices():
        found = statistics(torch.zeros(5000).to(WITHOUT_FLOAT64).detach())
    assert {name: pytest.approx(value, rel=1e-4) for name, value in expected.items()} == found


def test_the_pretended_device_refuses_what_accelerators_refuse() -> None:
    with pretended_devices() as transfers:
        ours, theirs = torch.ones(2, 2).to(WITHOUT_FLOAT64), torch.ones(2, 2)
        for mixed in (lambda: ours + theirs, lambda: ours @ theirs, lambda: theirs[ours.long()]):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        for wide in (ours.double, lambda: ours.to("cpu", torch.float64), lambda: theirs.double().to(ours.device)):
            with pytest.raises(TypeError, match="float64"):
                wide()
        assert isinstance(ours + torch.tensor(1.0), PretendedTensor) and ours.sum().item() == 4
        assert transfers == {"to device": 1, "from device": 1}
