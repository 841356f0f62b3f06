"""Every torchvision classifier: the default layer, Grad-CAM against the hand computation, a finite saliency.

Networks are built with `weights=None`, seeded weights and batch-norm statistics, one at a time, at small sizes
where the architecture allows it. All but one or two of each family are marked slow.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torchvision.models as zoo
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers import default_layer, explain, list_layers, saliency
from tests.support.nets import rel

pytestmark = pytest.mark.sample

NAMES = zoo.list_models(module=zoo)

# Of each family; the others, of up to gigabytes, are marked slow.
FIRST = set(
    """
    convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mobilenet_v2
    mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_0
    swin_t swin_v2_t
    """.split()
)

FAMILIES = {
    ("resnet", "resnext", "wide_resnet"): "layer4",
    ("alexnet", "vgg", "densenet", "efficientnet", "mobilenet", "convnext", "squeezenet"): "features",
    ("regnet",): "trunk_output",
    ("shufflenet",): "conv5",
    ("mnasnet",): "layers",
    ("inception_v3",): "Mixed_7c",
    ("googlenet",): "inception5b",
    ("maxvit",): "blocks.3",
    ("swin",): "norm",
}


def expected_layer(name: str, net: nn.Module) -> str:
    if name.startswith("vit"):
        return f"encoder.layers.encoder_layer_{len(net.encoder.layers) - 1}.ln_1"
    return next(layer for starts, layer in FAMILIES.items() if name.startswith(starts))


def size(name: str) -> tuple[int, int]:
    """Height and width: not square where the architecture allows it, and large enough for a last grid of 4x4."""
    if name.startswith(("vit", "maxvit")):
        return (224, 224)
    if name == "inception_v3":
        return (172, 204)
    if name == "alexnet":
        return (160, 192)
    return (128, 160)


class _Skip(TorchFunctionMode):
    """No initialization: it takes longer than everything else here, and `settle_fast` writes every value anyway."""

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))


@contextmanager
def uninitialised() -> Iterator[None]:
    """Build without initialization; `trunc_normal_` does not respect function modes."""
    kept = nn.init.trunc_normal_
    nn.init.trunc_normal_ = lambda tensor, *a, **k: tensor  # type: ignore[assignment]
    try:
        with _Skip():
            yield
    finally:
        nn.init.trunc_normal_ = kept


def settle_fast(net: nn.Module) -> nn.Module:
    """Seeded weights, biases and batch-norm statistics; layer scales of a half, so that every branch contributes."""
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(1 << 20, generator=generator)

    def fill(tensor: Tensor, scale: float, shift: float = 0.0) -> None:
        flat = tensor.view(-1)
        for start in range(0, flat.numel(), pool.numel()):
            part = flat[start : start + pool.numel()]
            part.copy_(pool[: part.numel()]).mul_(scale).add_(shift)

    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("layer_scale"):
                fill(parameter, 0.1, 0.5)
            elif parameter.dim() > 1:
                fill(parameter, math.sqrt(2 / parameter[0].numel()))
            else:
                fill(parameter, 0.1)
        for module in net.modules():
            if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)) and module.weight is not None:
                module.weight.add_(1)
            if isinstance(module, nn.BatchNorm2d):
                fill(module.running_mean, 0.1)
                module.running_var.fill_(1)
    return net.eval()


def build(name: str) -> nn.Module:
    with uninitialised():
        net = zoo.get_model(name, weights=None)
    return settle_fast(net)


def by_hand(
    net: nn.Module, layer: nn.Module, x: Tensor, class_: int, layout: str, grid: tuple[int, int], extra: int
) -> Tensor:
    """A forward hook that stores and returns a clone, one gradient, weights times activations."""
    box: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        box.append(output)
        return output.clone()

    handle = layer.register_forward_hook(hook)
    try:
        scores = net(x.clone().requires_grad_())
    finally:
        handle.remove()
    (g,) = torch.autograd.grad(scores[0, class_], box[0])
    a = box[0].detach()
    if layout == "NHWC":
        a, g = a.permute(0, 3, 1, 2), g.permute(0, 3, 1, 2)
    if layout == "tokens":
        a, g = (t[:, extra:].transpose(1, 2).unflatten(2, grid) for t in (a, g))
    return (g.mean((2, 3), keepdim=True) * a).sum(1)


def layout_of(name: str) -> str:
    return "tokens" if name.startswith("vit") else "NHWC" if name.startswith("swin") else "NCHW"


def test_there_are_eighty_names():
    """A new torchvision brings new names: each needs an entry for its last stage."""
    assert len(NAMES) >= 80 and set(NAMES) >= FIRST
    for name in NAMES:
        assert name.startswith("vit") or any(name.startswith(starts) for starts in FAMILIES), name


@pytest.fixture(autouse=True)
def _one_network_at_a_time() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_default_layer_grad_cam_and_saliency(name):
    net = build(name)
    height, width = size(name)
    x = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    layer = expected_layer(name, net)

    assert default_layer(net, x) == layer
    e = explain("grad_cam", net, x)
    assert e.layer == layer
    (best,) = e.target
    entry = next(each for each in list_layers(net, x) if each.name == layer)
    assert entry.layout == layout_of(name) and entry.grid == tuple(e.map.shape[1:]) and entry.grid != (1, 1)

    expected = by_hand(net, net.get_submodule(layer), x, best, entry.layout, entry.grid, entry.extra_tokens)
    assert expected.isfinite().all() and expected.any(), "the seeded network must give something to compare"
    assert rel(e.raw, expected) < 1e-4
    assert torch.equal(e.map, e.raw.relu())

    slope = saliency(net, x, best)
    assert slope.shape == x.shape and slope.isfinite().all() and slope.any()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("resnet18", ["layer1", "layer2", "layer3", "layer4"]),
        ("convnext_tiny", ["features.1", "features.3", "features.5", "features"]),
        ("swin_t", ["features.1", "features.3", "features.5"]),
    ],
)
def test_the_last_layer_of_each_stage_by_family(name, layers):
    net = build(name)
    stages = [layer.name for layer in list_layers(net, torch.randn(1, 3, 128, 192)) if layer.stage]
    assert [each for each in stages if each in layers] == layers
