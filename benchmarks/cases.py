"""The timed cases: a method on a network, with our implementation and with those of other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import explainers
from benchmarks import peers
from benchmarks.peers import Contenders
from benchmarks.timing import UNIT
from explainers.network.fast.fused_copy import computes_bf16

TRAINING_STEP = "bare training step"
"""The unit of the training case: the same step without recording."""

OURS = "saliscope"
CLASS = 3
LITE = "efficientnet_lite0"
ALL_CHANNELS = 65536
CPU = torch.device("cpu")
SMALL = 96
"""Side in pixels of the images of the short run."""
ROAD = ("grad-cam", "grad-cam, only highest first")
"""Contenders that solve a separate sparse system for each image and level."""


@dataclass(frozen=True)
class Case:
    """One comparison: `make` builds the contenders; those in `slow` run once; `rounds` limits the rounds.

    Times are divided by that of the contender `unit`.
    """

    title: str
    make: Callable[[], Contenders]
    rounds: int | None = None
    slow: tuple[str, ...] = ()
    unit: str = UNIT


def network(name: str) -> tuple[nn.Module, int, list[str]]:
    """Return the network in eval mode, its input side in pixels and its last four stages.

    Weights are random, except for those of the built-in model.
    """
    torch.manual_seed(0)
    if name == LITE:
        from saliscope.zoo import load_model

        model = load_model(LITE)
        # Two of the other libraries need parameters that require grad.
        side, net = int(model.side), model.network.requires_grad_(True)
    else:
        import torchvision

        net, side = torchvision.models.get_model(name, weights=None).eval(), 224
    stages = [layer.name for layer in explainers.list_layers(net, torch.zeros(1, 3, side, side)) if layer.stage]
    return net, side, stages[-4:]


def _prepare(name: str, side: int | None = None) -> tuple[nn.Module, Tensor, list[str], Contenders]:
    net, usual, stages = network(name)
    side = side or usual
    x = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))

    def bare() -> object:
        with torch.inference_mode():
            return net(x)

    return net, x, stages, {UNIT: bare}


def grad_cam(name: str, side: int | None = None) -> Contenders:
    """Grad-CAM at the last stage, and `explain` with it: scores, statistics, findings and the runner-up's map."""
    net, x, stages, contenders = _prepare(name, side)
    last = stages[-1]
    contenders[OURS] = lambda: explainers.grad_cam(net, x, CLASS, layer=last)
    contenders[f"{OURS}, explain"] = lambda: explainers.explain("grad_cam", net, x, CLASS, layer=last)
    return contenders | peers.grad_cams(net, x, CLASS, [last])


def sweep(name: str, side: int | None = None) -> Contenders:
    """Grad-CAM at four stages, and the calls of other libraries for several layers."""
    net, x, stages, contenders = _prepare(name, side)
    contenders[OURS] = lambda: explainers.grad_cam_sweep(net, x, CLASS, layers=stages)
    return contenders | peers.grad_cams(net, x, CLASS, stages)


def ablation(name: str, side: int | None = None) -> Contenders:
    """Ablation-CAM and channel effects at the last stage."""
    net, x, stages, contenders = _prepare(name, side)
    last = stages[-1]
    contenders[OURS] = lambda: explainers.ablation_cam(net, x, CLASS, layer=last)
    contenders[f"{OURS}, channel effects"] = lambda: explainers.channel_effects(net, x, CLASS, layer=last)
    return contenders | peers.ablation(net, x, CLASS, last)


def saliency(name: str, side: int | None = None) -> Contenders:
    """The input gradient."""
    net, x, _, contenders = _prepare(name, side)
    contenders[OURS] = lambda: explainers.saliency(net, x, CLASS)
    return contenders | peers.saliency(net, x, CLASS)


def guided(name: str, side: int | None = None) -> Contenders:
    """Guided backpropagation."""
    net, x, _, contenders = _prepare(name, side)
    contenders[OURS] = lambda: explainers.guided_backprop(net, x, CLASS)
    return contenders | peers.guided_backprop(net, x, CLASS)


def integrated(name: str, steps: int, side: int | None = None) -> Contenders:
    """Integrated gradients with `steps` points."""
    net, x, _, contenders = _prepare(name, side)
    contenders |= _both_precisions(partial(explainers.integrated_gradients, net, x, CLASS, steps=steps))
    return contenders | peers.integrated_gradients(net, x, CLASS, steps)


def smooth(name: str, samples: int, side: int | None = None) -> Contenders:
    """SmoothGrad with `samples` draws."""
    net, x, _, contenders = _prepare(name, side)
    contenders |= _both_precisions(partial(explainers.smooth_grad, net, x, CLASS, samples=samples))
    return contenders | peers.smooth_grad(net, x, CLASS, samples)


def occlusion(name: str, side: int | None = None) -> Contenders:
    """Occlusion with windows of an eighth of the side, half overlapping."""
    net, x, _, contenders = _prepare(name, side)
    window = x.shape[-1] // 8
    contenders |= _both_precisions(partial(explainers.occlusion, net, x, CLASS, window=window, stride=window // 2))
    return contenders | peers.occlusion(net, x, CLASS, window, window // 2)


def rise(name: str, samples: int) -> Contenders:
    """RISE with `samples` masks."""
    net, x, _, contenders = _prepare(name)
    contenders |= _both_precisions(partial(explainers.rise, net, x, CLASS, samples=samples))
    return contenders | peers.masks(net, x, CLASS, samples)


def shap(name: str, samples: int) -> Contenders:
    """Gradient SHAP with `samples` draws."""
    net, x, _, contenders = _prepare(name)
    contenders |= _both_precisions(partial(explainers.gradient_shap, net, x, CLASS, samples=samples))
    return contenders | peers.gradient_shap(net, x, CLASS, samples)


def score_cam(name: str) -> Contenders:
    """Score-CAM at the last stage: one pass per channel as in other libraries, and our default passes."""
    net, x, stages, contenders = _prepare(name)
    contenders |= _both_precisions(
        partial(explainers.score_cam, net, x, CLASS, layer=stages[-1], channels=ALL_CHANNELS)
    )
    contenders[f"{OURS}, default passes"] = lambda: explainers.score_cam(net, x, CLASS, layer=stages[-1])
    return contenders | peers.score_cams(net, x, CLASS, stages[-1])


def channel_effects(name: str) -> Contenders:
    """Channel effects at the stage before the last, compared with one bare forward pass per channel."""
    net, x, stages, contenders = _prepare(name)
    middle = stages[-2]
    count = explainers.feature_maps(net, x, layer=middle).shape[1]

    def forwards() -> object:
        with torch.inference_mode():
            return [net(x) for _ in range(count)]

    return {
        UNIT: contenders[UNIT],
        OURS: lambda: explainers.channel_effects(net, x, CLASS, layer=middle),
        f"{count} bare forwards": forwards,
    }


def batch(name: str, size: int) -> Contenders:
    """Grad-CAM of a batch; the unit is a forward pass of the same batch."""
    net, x, stages, _ = _prepare(name)
    images = x.expand(size, -1, -1, -1) + 0.1 * torch.randn(size, *x.shape[1:])

    def bare() -> object:
        with torch.inference_mode():
            return net(images)

    return {UNIT: bare, OURS: lambda: explainers.grad_cam(net, images, CLASS, layer=stages[-1])} | peers.grad_cams(
        net, images, CLASS, [stages[-1]]
    )


def curves(name: str, steps: int, side: int | None = None) -> Contenders:
    """Deletion and insertion of a precomputed map; with the controls, and with the faster precision."""
    net, x, stages, contenders = _prepare(name, side)
    heat = explainers.explain("grad_cam", net, x, CLASS, layer=stages[-1]).upsample((x.shape[-2], x.shape[-1]))
    one = partial(explainers.evaluate, net, x, heat, target=CLASS, steps=steps, baseline="zeros")
    contenders |= _both_precisions(partial(one, controls=False, precision="float32"))
    contenders[f"{OURS}, with controls, auto"] = one
    return contenders | peers.curves(net, x, CLASS, heat, steps)


def road(name: str, size: int, side: int | None = None) -> Contenders:
    """ROAD at four levels, both orders; the unit is a forward pass of the same batch."""
    net, x, stages, _ = _prepare(name, side)
    images = x.expand(size, -1, -1, -1) + 0.1 * torch.randn(size, *x.shape[1:])

    def bare() -> object:
        with torch.inference_mode():
            return net(images)

    heat = explainers.explain("grad_cam", net, images, CLASS, layer=stages[-1]).upsample((x.shape[-2], x.shape[-1]))
    one = partial(explainers.evaluate, net, images, heat, target=CLASS, metrics="road", controls=False)
    one = partial(one, precision="float32")
    return {UNIT: bare} | _both_precisions(one) | peers.road(net, images, CLASS, heat, (20, 40, 60, 80))


def imports() -> Contenders:
    """A new interpreter that imports the library; the unit is an interpreter that imports only torch."""

    def python(code: str) -> Callable[[], object]:
        # Byte code is cached, as is Python's default.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, env=environment)

    return {UNIT: python("import torch"), OURS: python("import torch, explainers")}


def every_method(side: int | None = None, **options: float) -> Contenders:
    """Every method once on the built-in model, with those of `options` that it has as numeric options."""
    net, x, _, contenders = _prepare(LITE, side)
    for method in explainers.METHODS.values():
        if method.applies(net) is None:
            numbers = {name for name, option in method.options.items() if not isinstance(option.default, str)}
            known = {name: value for name, value in options.items() if name in numbers}
            contenders[f"{OURS}, {method.name}"] = partial(method, net, x, CLASS, **known)
    return contenders


def _both_precisions(method: Callable[..., object]) -> Contenders:
    return {OURS: method} | ({f"{OURS}, bf16": partial(method, precision="bf16")} if computes_bf16(CPU) else {})


def training_step(size: int = 32, side: int = 64) -> Contenders:
    """An SGD step of a small ResNet, bare and recorded; every recorded step has its own `with` block."""
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(0)
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10).train()
    x, y = torch.randn(size, 3, side, side), torch.randint(0, 10, (size,))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    def recorded(**options: int) -> None:
        with explainers.record_gradients(net, **options):
            step()

    def clipped() -> None:
        with explainers.clip_gradients(net, norm=1.0):
            step()

    def clipped_by_torch() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return {
        UNIT: step,
        "saliscope, record_gradients": recorded,
        "saliscope, with 32 bins": lambda: recorded(histograms=32),
        "saliscope, clip_gradients(norm)": clipped,
        "torch, clip_grad_norm_": clipped_by_torch,
    }


def full() -> Iterator[Case]:
    """Yield all cases of the full run."""
    for name in ("resnet18", "resnet50", LITE, "regnet_y_400mf"):
        yield Case(f"Grad-CAM, last stage, {name}", lambda name=name: grad_cam(name))  # type: ignore[misc]
        yield Case(f"Grad-CAM, four stages, {name}", lambda name=name: sweep(name))  # type: ignore[misc]
    yield Case("Ablation-CAM, last stage, resnet18", lambda: ablation("resnet18"), rounds=5, slow=("grad-cam",))
    yield Case("Ablation-CAM, last stage, resnet50", lambda: ablation("resnet50"), rounds=2, slow=("grad-cam",))
    yield Case("Ablation-CAM, last stage, Lite0", lambda: ablation(LITE), rounds=5, slow=("grad-cam",))
    yield Case("Channel effects, last stage but one, resnet18", lambda: channel_effects("resnet18"), rounds=3)
    yield Case(
        "Score-CAM, last stage, resnet18", lambda: score_cam("resnet18"), rounds=2, slow=("grad-cam", "torchcam")
    )
    yield Case("Score-CAM, last stage, Lite0", lambda: score_cam(LITE), rounds=2, slow=("grad-cam", "torchcam"))
    yield Case("Channel effects, last stage but one, Lite0", lambda: channel_effects(LITE), rounds=3)
    yield Case("Batch of 32, Grad-CAM, resnet18", lambda: batch("resnet18", 32), rounds=5)
    yield Case("Batch of 32, Grad-CAM, Lite0", lambda: batch(LITE, 32), rounds=5)
    yield Case("Batch of 8, Grad-CAM, resnet50", lambda: batch("resnet50", 8), rounds=5)
    yield Case("Saliency, resnet18", lambda: saliency("resnet18"))
    yield Case("Guided backpropagation, resnet18", lambda: guided("resnet18"))
    yield Case("Saliency, Lite0", lambda: saliency(LITE))
    # Not EfficientNet-Lite0: for its ReLU6, the other libraries return the plain gradient.
    yield Case("Guided backpropagation, regnet_y_400mf", lambda: guided("regnet_y_400mf"))
    yield Case("Integrated gradients, 50 points, resnet18", lambda: integrated("resnet18", 50), rounds=3)
    yield Case("Integrated gradients, 50 points, Lite0", lambda: integrated(LITE, 50), rounds=5)
    yield Case("SmoothGrad, 25 samples, resnet18", lambda: smooth("resnet18", 25), rounds=3)
    yield Case("SmoothGrad, 25 samples, Lite0", lambda: smooth(LITE, 25), rounds=3)
    yield Case("Gradient SHAP, 48 samples, resnet18", lambda: shap("resnet18", 48), rounds=3)
    yield Case("Gradient SHAP, 48 samples, Lite0", lambda: shap(LITE, 48), rounds=3)
    yield Case("Occlusion, resnet18", lambda: occlusion("resnet18"), rounds=3)
    yield Case("Occlusion, Lite0", lambda: occlusion(LITE), rounds=5)
    yield Case("RISE, 320 masks, resnet18", lambda: rise("resnet18", 320), rounds=3)
    yield Case("RISE, 320 masks, Lite0", lambda: rise(LITE, 320), rounds=3)
    yield Case("Deletion and insertion, 20 steps, resnet18", lambda: curves("resnet18", 20), rounds=3)
    yield Case("Deletion and insertion, 20 steps, Lite0", lambda: curves(LITE, 20), rounds=5)
    yield Case("ROAD, four levels, 8 images, resnet18", lambda: road("resnet18", 8), rounds=2, slow=ROAD)
    yield Case("ROAD, four levels, 8 images, Lite0", lambda: road(LITE, 8), rounds=5, slow=ROAD)
    yield Case("Recording a training step, small ResNet", training_step, unit=TRAINING_STEP)
    yield Case("import explainers, relative to import torch", imports, rounds=5)


def smoke() -> Iterator[Case]:
    """Yield a small version of every kind of case, on small images; every method runs once."""
    for name in ("resnet18", LITE):
        yield Case(f"Grad-CAM, last stage, {name}", lambda name=name: grad_cam(name, SMALL))  # type: ignore[misc]
    yield Case("Grad-CAM, four stages, Lite0", lambda: sweep(LITE, SMALL))
    yield Case("Ablation-CAM, last stage, resnet18", lambda: ablation("resnet18", SMALL))
    yield Case("Saliency, Lite0", lambda: saliency(LITE, SMALL))
    yield Case("Guided backpropagation, Lite0", lambda: guided(LITE, SMALL))
    yield Case("Integrated gradients, 4 points, Lite0", lambda: integrated(LITE, 4, SMALL))
    yield Case("SmoothGrad, 4 samples, Lite0", lambda: smooth(LITE, 4, SMALL))
    yield Case("Occlusion, Lite0", lambda: occlusion(LITE, SMALL))
    yield Case("Deletion and insertion, 4 steps, Lite0", lambda: curves(LITE, 4, SMALL))
    yield Case("ROAD, four levels, 1 image, Lite0", lambda: road(LITE, 1, SMALL))
    yield Case("Recording a training step, small ResNet", lambda: training_step(8, 32), unit=TRAINING_STEP)
    cases = {"steps": 4, "samples": 8, "window": SMALL // 2, "channels": 8}
    yield Case("Every method, Lite0", lambda: every_method(SMALL, **cases))
