"""The timed cases: a method on a network, with our implementation and with those of other libraries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytorch_grad_cam
import torch
import torchvision
from captum import attr
from pytorch_grad_cam.metrics.road import ROADCombined, ROADMostRelevantFirstAverage
from pytorch_grad_cam.utils import model_targets
from torch import Tensor
from torchcam import methods as torchcam_methods
from torchcam.metrics import DeletionInsertionMetric
from torchvision.models.resnet import BasicBlock, ResNet

import explainers
from explainers.call.fused_copy import computes_bf16
from saliscope.zoo import load_model

Contenders = dict[str, Callable[[], object]]
"""One call of the method by name."""
OURS, UNIT = "saliscope", "bare forward"
CLASS = 3
LITE = "efficientnet_lite0"
BF16 = computes_bf16(torch.device("cpu"))
SIDE, SMALL = 224, 96
"""Side in pixels of the images, and of those of the short run."""
ROAD = {"grad-cam": ROADCombined, "grad-cam, only highest first": ROADMostRelevantFirstAverage}
"""Contenders that solve a separate sparse system for each image and level."""


class Setup:
    """A network and images, and the methods of other libraries for them.

    Weights are random, except for those of the built-in model.
    """

    def __init__(self, name: str, side: int = SIDE, size: int = 1) -> None:
        torch.manual_seed(0)
        if name == LITE:
            # Two of the other libraries need parameters that require grad.
            self.net = load_model(LITE).network.requires_grad_(True)
        else:
            self.net = torchvision.models.get_model(name, weights=None).eval()
        layers = explainers.list_layers(self.net, torch.zeros(1, 3, SIDE, SIDE))
        self.stages = [layer.name for layer in layers if layer.stage][-4:]
        self.last = self.stages[-1]
        self.x = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        if size > 1:
            self.x = self.x.expand(size, -1, -1, -1) + 0.1 * torch.randn(size, *self.x.shape[1:])

    def bare(self) -> object:
        """Run a forward pass of the same images, the unit."""
        with torch.inference_mode():
            return self.net(self.x)

    def with_bare(self, call: Callable[..., object], bf16: bool = False) -> Contenders:
        """Return the bare forward pass and a call of ours, also in the faster precision."""
        faster = {f"{OURS}, bf16": partial(call, precision="bf16")} if bf16 and BF16 else {}
        return {UNIT: self.bare, OURS: call, **faster}

    def call(self, method: str, **options: Any) -> Callable[..., object]:
        """Return a call of our method."""
        return partial(getattr(explainers, method), self.net, self.x, CLASS, **options)

    def ours(self, method: str, bf16: bool = False, **options: Any) -> Contenders:
        """Return the bare forward pass and our method, also in the faster precision."""
        return self.with_bare(self.call(method, **options), bf16)

    def captum(self, kind: str, layers: Sequence[str] = (), **options: Any) -> Callable[[], object]:
        """A method of captum, for each of several layers; NoiseTunnel runs Saliency."""
        own = copy.deepcopy(self.net)
        made = [getattr(attr, kind)(own, own.get_submodule(layer)) for layer in layers]
        made = made or [getattr(attr, kind)(attr.Saliency(own) if kind == "NoiseTunnel" else own)]
        return lambda: [each.attribute(self.x.clone(), target=CLASS, **options) for each in made]

    def captum_in_chunks(self, kind: str, option: str, *chunks: int | None, **options: Any) -> Contenders:
        """A method of captum that runs all its rows in one batch, or in chunks."""
        titles = {f"captum, chunks of {chunk}" if chunk else "captum": chunk for chunk in chunks}
        return {title: self.captum(kind, **options, **{option: chunk}) for title, chunk in titles.items()}

    def grad_cam(self, method: str, *layers: str) -> Contenders:
        """A class-activation map of grad-cam."""
        own, targets = copy.deepcopy(self.net), [model_targets.ClassifierOutputTarget(CLASS)] * len(self.x)
        cam = getattr(pytorch_grad_cam, method)(own, [own.get_submodule(layer) for layer in layers])
        if method == "AblationCAM":
            cam.batch_size = 32
        return {"grad-cam": lambda: cam(self.x, targets)}

    def torchcam(self, method: str, *layers: str, **options: Any) -> Contenders:
        """A class-activation map of torchcam."""
        own, maker = copy.deepcopy(self.net), getattr(torchcam_methods, method)

        def call() -> object:
            with maker(own, list(layers), **options) as extractor, torch.set_grad_enabled(method != "ScoreCAM"):
                return extractor(CLASS, own(self.x), normalized=False)

        return {"torchcam": call}

    def grad_cams(self, *layers: str) -> Contenders:
        """Grad-CAM of the other libraries."""
        contenders = {"captum": self.captum("LayerGradCam", layers)}
        return contenders | self.grad_cam("GradCAM", *layers) | self.torchcam("GradCAM", *layers)


def grad_cam(s: Setup) -> Contenders:
    """Grad-CAM at the last stage, and `explain` with it: scores, statistics, findings and the runner-up's map."""
    explained = {f"{OURS}, explain": lambda: explainers.explain("grad_cam", s.net, s.x, CLASS, layer=s.last)}
    return s.ours("grad_cam", layer=s.last) | explained | s.grad_cams(s.last)


def sweep(s: Setup) -> Contenders:
    """Grad-CAM at four stages, and the calls of other libraries for several layers."""
    return s.ours("grad_cam_sweep", layers=s.stages) | s.grad_cams(*s.stages)


def ablation(s: Setup) -> Contenders:
    """Ablation-CAM and channel effects at the last stage; grad-cam runs the whole network for chunks of channels."""
    effects = {f"{OURS}, channel effects": s.call("channel_effects", layer=s.last)}
    return s.ours("ablation_cam", layer=s.last) | effects | s.grad_cam("AblationCAM", s.last)


def channel_effects(s: Setup) -> Contenders:
    """Channel effects at the stage before the last, compared with one bare forward pass per channel."""
    count = explainers.feature_maps(s.net, s.x, layer=s.stages[-2]).shape[1]
    forwards = {f"{count} bare forwards": lambda: [s.bare() for _ in range(count)]}
    return s.ours("channel_effects", layer=s.stages[-2]) | forwards


def score_cam(s: Setup) -> Contenders:
    """Score-CAM at the last stage: one pass per channel as in other libraries, and our default passes."""
    usual = {f"{OURS}, default passes": s.call("score_cam", layer=s.last)}
    ours = s.ours("score_cam", True, layer=s.last, channels=65536) | usual  # all channels
    return ours | s.grad_cam("ScoreCAM", s.last) | s.torchcam("ScoreCAM", s.last, input_shape=tuple(s.x.shape[1:]))


def saliency(s: Setup) -> Contenders:
    """The input gradient."""
    return s.ours("saliency") | {"captum": s.captum("Saliency", abs=False)}


def guided(s: Setup) -> Contenders:
    """Guided backpropagation, whose rule no other library applies to ReLU6."""
    own = pytorch_grad_cam.GuidedBackpropReLUModel(copy.deepcopy(s.net), device="cpu")
    peers = {"captum": s.captum("GuidedBackprop"), "grad-cam": lambda: own(s.x.clone(), target_category=CLASS)}
    return s.ours("guided_backprop") | peers


def integrated(s: Setup, steps: int) -> Contenders:
    """Integrated gradients with `steps` points; captum's default is one batch."""
    options = {"n_steps": steps, "method": "gausslegendre"}
    peers = s.captum_in_chunks("IntegratedGradients", "internal_batch_size", None, 16, 8, 1, **options)
    return s.ours("integrated_gradients", True, steps=steps) | peers


def smooth(s: Setup, samples: int) -> Contenders:
    """SmoothGrad with `samples` draws; captum's default is one batch."""
    options = {"nt_samples": samples, "stdevs": 0.15 * float(s.x.max() - s.x.min()), "abs": False}
    peers = s.captum_in_chunks("NoiseTunnel", "nt_samples_batch_size", None, 8, **options)
    return s.ours("smooth_grad", True, samples=samples) | peers


def shap(s: Setup, samples: int) -> Contenders:
    """Gradient SHAP with `samples` draws."""
    peer = s.captum("GradientShap", baselines=torch.rand(samples, *s.x.shape[1:]), n_samples=samples)
    return s.ours("gradient_shap", True, samples=samples) | {"captum": peer}


def occlusion(s: Setup) -> Contenders:
    """Occlusion with windows of an eighth of the side, half overlapping; captum's default is one window at once."""
    window, channels = s.x.shape[-1] // 8, s.x.shape[1]
    options = {"sliding_window_shapes": (channels, window, window), "strides": (channels, window // 2, window // 2)}
    peers = s.captum_in_chunks("Occlusion", "perturbations_per_eval", 1, 16, baselines=0, **options)
    return s.ours("occlusion", True, window=window, stride=window // 2) | peers


def rise(s: Setup, samples: int) -> Contenders:
    """RISE with `samples` masks, and a plain loop in batches of 16, since no other library has it for images."""

    def loop() -> object:
        total = torch.zeros(s.x.shape[2:])
        with torch.inference_mode():
            for start in range(0, samples, 16):
                cells = (torch.rand(min(16, samples - start), 1, 8, 8) < 0.5).float()
                shown = torch.nn.functional.interpolate(cells, s.x.shape[2:], mode="bilinear")
                total += (s.net(s.x * shown)[:, CLASS, None, None] * shown[:, 0]).sum(0)
        return total

    return s.ours("rise", True, samples=samples) | {"a plain loop, 16 at once": loop}


def _heat(s: Setup) -> Tensor:
    """Return Grad-CAM at the size of the images, which is evaluated."""
    size = (s.x.shape[-2], s.x.shape[-1])
    return explainers.explain("grad_cam", s.net, s.x, CLASS, layer=s.last).upsample(size)


def curves(s: Setup, steps: int) -> Contenders:
    """Deletion and insertion of a precomputed map; with the controls, and with the faster precision."""
    heat = _heat(s)
    one = partial(explainers.evaluate, s.net, s.x, heat, target=CLASS, steps=steps, baseline="zeros")

    class Given:
        """A minimal extractor, which returns the map."""

        model, _hooks_off = copy.deepcopy(s.net), staticmethod(nullcontext)
        fuse_cams = staticmethod(lambda maps: maps[0])

        def __call__(self, *args: object, **kwargs: object) -> list[Tensor]:
            return [heat]

    def torchcam() -> object:
        metric = DeletionInsertionMetric(Given(), lambda logits: logits.softmax(-1), steps=steps)
        metric.update(s.x, [CLASS] * len(s.x))
        return metric.summary()

    ours = s.with_bare(partial(one, controls=False, precision="float32"), bf16=True)
    return ours | {f"{OURS}, with controls, auto": one, "torchcam": torchcam}


def road(s: Setup) -> Contenders:
    """ROAD at four levels, both orders; of grad-cam, also the highest pixels removed."""
    heat, own = _heat(s), copy.deepcopy(s.net)
    options = {"target": CLASS, "metrics": "road", "controls": False, "precision": "float32"}
    contenders = s.with_bare(partial(explainers.evaluate, s.net, s.x, heat, **options), bf16=True)
    targets = [model_targets.ClassifierOutputSoftmaxTarget(CLASS)] * len(s.x)
    for title, metric in ROAD.items():
        contenders[title] = partial(metric([20, 40, 60, 80]), s.x, heat.numpy(), targets, own)
    return contenders


def every_method(side: int = SIDE, **options: float) -> Contenders:
    """Every method once on the built-in model, with those of `options` that it has as numeric options."""
    s = Setup(LITE, side)
    contenders: Contenders = {UNIT: s.bare}
    for method in explainers.METHODS.values():
        if method.applies(s.net) is None:
            numbers = {name for name, option in method.options.items() if not isinstance(option.default, str)}
            known = {name: value for name, value in options.items() if name in numbers}
            contenders[f"{OURS}, {method.name}"] = partial(method, s.net, s.x, CLASS, **known)
    return contenders


def training_step(size: int = 32, side: int = 64) -> Contenders:
    """An SGD step of a small ResNet, bare and recorded; every recorded step has its own `with` block."""
    torch.manual_seed(0)
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10).train()
    x, y = torch.randn(size, 3, side, side), torch.randint(0, 10, (size,))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(block: Callable[[], Any] = nullcontext, clip: bool = False) -> None:
        with block():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return {
        UNIT: step,
        f"{OURS}, record_gradients": partial(step, partial(explainers.record_gradients, net)),
        f"{OURS}, with 32 bins": partial(step, partial(explainers.record_gradients, net, histograms=32)),
        f"{OURS}, clip_gradients(norm)": partial(step, partial(explainers.clip_gradients, net, norm=1.0)),
        "torch, clip_grad_norm_": partial(step, clip=True),
    }


class Case(NamedTuple):
    """One comparison on some networks: those contenders in `slow` run once; `rounds` limits the rounds.

    `small` are the options of the short run, which has the first network and small images; None if it has none.
    """

    title: str
    make: Callable[..., Contenders]
    networks: tuple[str, ...] = ("resnet18", LITE)
    rounds: int | None = 3
    slow: tuple[str, ...] = ()
    size: int = 1
    options: Mapping[str, Any] = {}
    unit: str = UNIT
    small: dict[str, Any] | None = None

    def contenders(self, name: str, short: bool = False) -> Contenders:
        """Build the contenders for a network."""
        if self.make in (training_step, every_method):
            return self.make(**(self.small or {}) if short else {})
        setup = Setup(name, SMALL if short else SIDE, 1 if short else self.size)
        return self.make(setup, **(self.small or {}) if short else self.options)


ALL = ("resnet18", "resnet50", LITE, "regnet_y_400mf")
FEWER = {"steps": 4, "samples": 8, "window": SMALL // 2, "channels": 8}
CASES = [
    Case("Grad-CAM, last stage", grad_cam, ALL, None, small={}),
    Case("Grad-CAM, four stages", sweep, ALL, None, small={}),
    Case("Ablation-CAM, last stage", ablation, ("resnet18", "resnet50", LITE), slow=("grad-cam",), small={}),
    Case("Channel effects, last stage but one", channel_effects),
    Case("Score-CAM, last stage", score_cam, rounds=2, slow=("grad-cam", "torchcam")),
    Case("Batch of 32, Grad-CAM", grad_cam, rounds=5, size=32),
    Case("Batch of 8, Grad-CAM", grad_cam, ("resnet50",), 5, size=8),
    Case("Saliency", saliency, rounds=None, small={}),
    # Not EfficientNet-Lite0: for its ReLU6, the other libraries return the plain gradient.
    Case("Guided backpropagation", guided, ("resnet18", "regnet_y_400mf"), None, small={}),
    Case("Integrated gradients, 50 points", integrated, options={"steps": 50}, small={"steps": 4}),
    Case("SmoothGrad, 25 samples", smooth, options={"samples": 25}, small={"samples": 4}),
    Case("Gradient SHAP, 48 samples", shap, options={"samples": 48}),
    Case("Occlusion", occlusion, small={}),
    Case("RISE, 320 masks", rise, options={"samples": 320}),
    Case("Deletion and insertion, 20 steps", curves, options={"steps": 20}, small={"steps": 4}),
    Case("ROAD, four levels, 8 images", road, slow=tuple(ROAD), size=8, small={}),
    Case("Recording", training_step, ("small ResNet",), None, unit="training step", small={"size": 8, "side": 32}),
]
EVERY = Case("Every method", every_method, (LITE,), small={"side": SMALL, **FEWER})


def cases(short: bool) -> Iterator[tuple[str, Case, str]]:
    """Yield the title, the case and the network of all cases, or of the short run, in which every method runs once."""
    for case in [*CASES, EVERY] if short else CASES:
        if not short or case.small is not None:
            for name in case.networks[:1] if short else case.networks:
                yield f"{case.title}, {name}{', small' * short}", case, name
