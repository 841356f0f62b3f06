"""One table of wrong uses: the call, the type of its error, and what the message must name: the value or the remedy.

Most are refused before any forward pass, so that the message comes at once. test_ease.py has calls that are nearly
wrong but unambiguous, and gives every argument of every public function strange values.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from explainers import (
    METHODS,
    BadImages,
    BadOption,
    BadTarget,
    BoxScores,
    Contrast,
    ExplainerError,
    LayerNotFound,
    Logit,
    MaskScores,
    NoSpatialOutput,
    Probability,
    Similarity,
    Sum,
    Through,
    UnsupportedModel,
    capture,
    explain,
    full_gradients,
    grad_cam,
    grad_cam_sweep,
    integrated_gradients,
    occlusion,
    overlay,
    saliency,
    sweep,
    unit,
)
from tests.support.deciding_nets import Conv, lights
from tests.support.nets import DictNet, Written, curved, plain, random_images, settle

NAN, INF = float("nan"), float("inf")
MAP = torch.rand(3, 4)
BOX = torch.tensor([[0.0, 0, 1, 1]])


class Counting(nn.Module):
    """A network that counts its forward passes."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.calls = curved() if net is None else net, [0]

    def forward(self, x: Tensor) -> Any:
        self.calls[0] += 1
        return self.net(x)


class Detector(nn.Module):
    """A module as in ultralytics: it holds the network and takes files, and `train` starts training."""

    def __init__(self) -> None:
        super().__init__()
        self.model = curved()

    def __call__(self, source: Any = None) -> Any:
        return ["results"]

    def train(self, trainer: Any = None) -> Any:
        raise AssertionError("training started")


def spoiled(value: float) -> Tensor:
    """Images of which each has one such value."""
    images = random_images()
    images[:, 2, 3, 4] = value
    return images


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


Call = Callable[[Any, Tensor], Any]
Row = tuple[Call, type[Exception], str]

IMAGES: list[Row] = [
    (lambda n, x: saliency(n, zeros(3, 4, 4)), BadImages, r"4 dimensions, \[N, C, H, W\]"),
    (lambda n, x: saliency(n, x[:0]), BadImages, "no images|empty|N"),
    (lambda n, x: saliency(n, x.long()), BadImages, "int64"),
    (lambda n, x: saliency(n, x.numpy()), TypeError, "images is a NumPy array"),
    (lambda n, x: saliency(n, x.to("meta")), BadImages, "on the meta device"),
    (lambda n, x: saliency(n, x.to_sparse()), BadImages, "sparse"),
    # Values that are not finite, of which other libraries make clean-looking maps
    (lambda n, x: saliency(n, spoiled(NAN)), BadImages, "nan at image 0, channel 2, row 3, column 4"),
    (lambda n, x: METHODS["rise"](n, spoiled(INF)), BadImages, "inf at image 0, channel 2, row 3, column 4"),
]
INSIDE = r"Pass the network itself: model\.model\."
MODELS: list[Row] = [
    (lambda n, x: saliency(lambda images: n(images), x), TypeError, "function"),
    (lambda n, x: saliency(Detector(), x), TypeError, INSIDE),
    (lambda n, x: explainers.list_layers(SimpleNamespace(model=n), x), TypeError, INSIDE),
    (lambda n, x: saliency(nn.ModuleList([n]), x), TypeError, "a ModuleList without a forward method"),
    (lambda n, x: explainers.check_explainer(grad_cam, model="resnet18"), TypeError, "model is a str"),  # type: ignore[arg-type]
    (lambda n, x: grad_cam(n), TypeError, "needs the argument 'images'"),
    (lambda n, x: grad_cam(), TypeError, "needs the argument 'model'"),
    (lambda n, x: explain(n, n, x), BadOption, "a Counting"),
    (lambda n, x: explain("grad_campq", n, x), BadOption, "grad_cam_pp"),
]
LAYERS: list[Row] = [
    (lambda n, x: grad_cam(n, x, 1, layer=3), explainers.WrongType, "layer"),
    (lambda n, x: grad_cam(n, x, 1, layer=["net.conv1", "net.conv2"]), BadOption, "has 2 layers.*sweep.*fuse"),
    (lambda n, x: sweep("saliency", n, x), BadOption, "does not use a layer"),
    (lambda n, x: sweep("grad_cma", n, x), BadOption, "Unknown method 'grad_cma'.*grad_cam"),
    (lambda n, x: grad_cam_sweep(n, x, 1, layers=3), BadOption, "layers="),
    (lambda n, x: saliency(n, x, 1, layer="net.conv1"), BadOption, "saliency has no option 'layer'"),
]
OPTIONS: list[Row] = [
    (lambda n, x: occlusion(n, x, 1, progress=3), BadOption, "progress="),
    (lambda n, x: occlusion(n, x, 1, window=4, stride=5), BadOption, "stride"),
    *(
        (lambda n, x, window=window: occlusion(n, x, 1, window=window, stride=1), (BadOption, TypeError), "window")  # type: ignore[misc]
        for window in (0, (4, 0), (4, 4, 4), "wide", 2.5)
    ),
    *((lambda n, x, v=v: explain("grad_cam", n, x, 1, reduce=v), BadOption, "reduce=") for v in ("summ", MAP.numpy())),
    (lambda n, x: explain("grad_cam", n, x, 1, trained_size="big"), BadOption, "trained_size="),
    (lambda n, x: explain("grad_cam", n, x, 1, compare=torch.tensor([1, 2])), BadOption, "compare="),
    (lambda n, x: explainers.lrp(n, x, 1, low=NAN), BadOption, "low"),
    (lambda n, x: explainers.guided_grad_cam(n, x, 1, interpolate="triilinear"), BadOption, "triilinear.*bilinear"),
]


def misspelled(given: str, meant: str) -> str:
    return f"'{given}'. Did you mean '{meant}'"


KEYWORDS: list[Row] = [
    (lambda n, x: grad_cam(n, x, targets=1), BadOption, misspelled("targets", "target")),
    (lambda n, x: grad_cam(n, x, target_layer="0"), BadOption, misspelled("target_layer", "layer")),
    (lambda n, x: grad_cam(n, inputs=x), BadOption, misspelled("inputs", "images")),
    (lambda n, x: saliency(n, x, foward=n), BadOption, "Did you mean 'forward'.*Available options: forward, through"),
    (lambda n, x: integrated_gradients(n, x, n_step=8), BadOption, misspelled("n_step", "steps")),
    (lambda n, x: occlusion(n, x, sliding_window_shapes=4), BadOption, misspelled("sliding_window_shapes", "window")),
    (lambda n, x: explain("grad_cam", n, x, reduction="sum"), BadOption, misspelled("reduction", "reduce")),
    (lambda n, x: explainers.evaluate(n, x, "saliency", targets=1), BadOption, misspelled("targets", "target")),
]
NO_CLASSES: list[Any] = [
    # What is not a class index
    *(np.array([1.0, 2.0, 0.0]), np.array([True, False, True]), np.array([[1, 2, 0]]), np.array(["a", "b", "c"])),
    *(np.float64(1), np.zeros((40, 40)), [[1], [2], [0]], [1.0, 2.0, 0.0], torch.tensor([1.0, 2.0, 0.0])),
    np.bool_(True),
    *(torch.tensor(True), torch.tensor([1, 2, 0], device="meta"), {1, 2, 0}, "cat", Logit, [True, False, True]),
]
COUNTS: list[Callable[[], Any]] = [
    # Other numbers of targets than one for all images or one per image
    *(list, lambda: [1], lambda: [0, 1], lambda: torch.tensor([0, 1]), lambda: np.array([0, 1, 2, 3])),
    *(lambda: Logit([0, 1]), lambda: Probability([0, 1]), lambda: Sum(Logit(0), Logit([0, 1]))),
    *(lambda: Similarity(torch.ones(2, 7)), lambda: MaskScores(torch.ones(2, 5, 5), 1)),
    *(lambda: MaskScores(torch.ones(5, 5), [0, 1]), lambda: Through([0, 1], "net.conv1", [0])),
]
CREATED: list[Callable[[], Any]] = [
    *(lambda: Sum(), lambda: Sum(None), lambda: Sum(unit("conv1", 0)), lambda: Sum(Through(1, "conv1", [0]))),
    *(lambda: Contrast(1, []), lambda: Contrast([1, 2, 0], 0), lambda: Contrast(1, 1)),
    *(lambda: Through(1, "conv1", []), lambda: Through(1, "conv1", None), lambda: Through(1, "conv1", 1.5)),
    lambda: Through(Through(1, "conv1", [0]), "conv2", [0]),
    *(lambda: Similarity(torch.full((7,), NAN)), lambda: Similarity(torch.zeros(7)), lambda: Similarity("cat")),
    *(lambda: MaskScores(torch.zeros(4, 4), 1), lambda: MaskScores(-torch.ones(4, 4), 1)),
    *(lambda: MaskScores(torch.full((4, 4), INF), 1), lambda: MaskScores(torch.ones(4), 1)),
    *(lambda: MaskScores(torch.ones(4, 4), True), lambda: MaskScores(torch.ones(4, 4), ["cat"])),
    *(lambda: BoxScores(torch.zeros(4), (1,)), lambda: BoxScores(torch.zeros(0, 4), ())),
    *(lambda: BoxScores(torch.tensor([[5.0, 5, 1, 1]]), (1,)), lambda: BoxScores(BOX, (1, 2))),
    *(lambda: BoxScores(BOX, ("cat",)), lambda: BoxScores(BOX, (1,), overlap=2)),
    *(lambda: Logit(-1), lambda: Logit(True), lambda: Logit(1.5), lambda: Logit("cat"), lambda: Logit([True])),
]
TARGETS: list[Row] = [
    *((lambda n, x, t=t: saliency(n, x, t), (BadTarget, TypeError), "^target is ") for t in NO_CLASSES),  # type: ignore[misc]
    *((lambda n, x, make=make: make(), (BadTarget, TypeError), "Give|give|Use") for make in CREATED),  # type: ignore[misc]
    *(
        (lambda n, x, make=make, name=name: explain(name, n, x, make()), BadTarget, "given for 3 images")  # type: ignore[misc]
        for make in COUNTS
        for name in ("saliency", "grad_cam", "occlusion", "lrp")
    ),
    *((lambda n, x, make=make: grad_cam_sweep(n, x, make()), BadTarget, "given for 3 images") for make in COUNTS),  # type: ignore[misc]
    (lambda n, x: saliency(n, x, -1), BadTarget, "-1"),
    (lambda n, x: saliency(n, x, unit("net.conv1", 0, at=5)), BadTarget, "at=5"),
    (lambda n, x: saliency(n, x, unit("net.conv2", 1, at=(1.5, 2))), BadTarget, "at="),
    (lambda n, x: saliency(n, x, unit("net.conv2", 1, at="top")), BadTarget, "at="),
    (lambda n, x: saliency(n, x, unit("net.conv2", "a")), BadTarget, "channel"),
    (lambda n, x: saliency(n, x, unit("net.conv2", True)), BadTarget, "channel"),
]
DISPLAY: list[Row] = [
    (lambda n, x: overlay(torch.randn(3, 12, 16), MAP), ValueError, "normalized"),
    (lambda n, x: overlay(torch.rand(1, 3, 12, 16), MAP), ValueError, "For a batch"),
    (lambda n, x: overlay(torch.rand(5, 12, 16), MAP), ValueError, "shape"),
    (lambda n, x: overlay(torch.ones(3, 12, 16).long(), MAP), (TypeError, ValueError), "uint8"),  # type: ignore[list-item]
    (lambda n, x: overlay("cat.png", MAP), TypeError, "PIL.Image.open"),  # type: ignore[arg-type]
    (lambda n, x: overlay(torch.rand(3, 12, 16), MAP, limits=(1, 0)), BadOption, "limits="),
    (lambda n, x: overlay(torch.rand(3, 12, 16), MAP, opacity="half"), BadOption, "opacity"),  # type: ignore[arg-type]
    (lambda n, x: explainers.regions(MAP, 12), ValueError, "size 12"),  # type: ignore[arg-type]
    (lambda n, x: explainers.regions(MAP, (12, 16), threshold="half"), BadOption, "threshold"),  # type: ignore[arg-type]
    *((lambda n, x, m=m: explainers.fuse(m), BadOption, "The maps have shapes") for m in ({}, {"a": MAP})),  # type: ignore[misc]
]
BEFORE_A_PASS = {
    "images": IMAGES, "models": MODELS, "layers": LAYERS, "options": OPTIONS, "keywords": KEYWORDS,
    "targets": TARGETS, "display": DISPLAY,
}  # fmt: skip


def check(row: Row, net: Any, images: Tensor) -> None:
    call, error, words = row
    with pytest.raises(error, match=words) as caught:
        call(net, images)
    text = str(caught.value)
    assert isinstance(caught.value, (ValueError, TypeError)) and 15 < len(text) < 600 and "\n" not in text


@pytest.mark.parametrize("subject", BEFORE_A_PASS)
def test_wrong_uses_are_refused_before_any_forward_pass(subject: str) -> None:
    for k, row in enumerate(BEFORE_A_PASS[subject]):
        net = Counting().eval()
        check(row, net, random_images())
        assert net.calls == [0], f"{subject} {k} ran the network before it was refused"


def segmentation() -> nn.Module:
    return settle(DictNet().double())


def masked(shape: tuple[int, ...], class_: int = 1) -> Any:
    return saliency(segmentation(), random_images(), MaskScores(torch.ones(shape), class_))


def without_convolution() -> nn.Module:
    """A network whose own error does not name the channels."""
    return Written(lambda self, x: self.head(x.flatten(1)), head=nn.Linear(3 * 12 * 16, 4)).double().eval()


FOUR = zeros(2, 4, 12, 16)
AFTER_A_PASS: list[Row] = [
    # Images
    *(
        (call, BadImages, r"4 channels, but the model takes 3")
        for call in (
            lambda n, x: saliency(n, FOUR),
            lambda n, x: saliency(curved().train(), FOUR),
            lambda n, x: saliency(without_convolution(), FOUR),
            lambda n, x: explainers.list_layers(n, FOUR),
            lambda n, x: saliency(n, FOUR, forward=lambda batch: n(batch)),
        )
    ),
    (lambda n, x: saliency(n, zeros(1, 1, 3, 12, 16)), BadImages, r"give images\[0\]"),
    (lambda n, x: saliency(n, zeros(2, 2, 3, 12, 16)), BadImages, r"give images\.flatten\(0, 1\)"),
    (lambda n, x: saliency(plain().half(), x), BadImages, "torch.float64, but the model is torch.float16. Give im"),
    (lambda n, x: saliency(n, x[:, :1]), BadImages, "has 1 channel, but the model takes 3.*images.expand"),
    (lambda n, x: saliency(curved(1), x), BadImages, "has 3 channels, but the model takes 1.*images.mean"),
    (lambda n, x: saliency(n, zeros(1, 16, 16, 3)), BadImages, "images.permute"),
    (lambda n, x: saliency(curved(7), x), BadImages, r"Give images \[N, 7, H, W\]"),
    # Layers and options
    (lambda n, x: grad_cam(n, x, 1, layer="net.conv3"), LayerNotFound, "'net.conv3'.*'net.conv2'"),
    (lambda n, x: grad_cam(n, x, 1, layer=nn.ReLU()), LayerNotFound, "ReLU"),
    (lambda n, x: sweep("element_wise_grad_cam", n, x, relu=True), BadOption, "relu"),
    (lambda n, x: explainers.lime(n, x, 1, masks=MAP.numpy()), BadOption, "masks=array"),
    (lambda n, x: explainers.gradient_shap(n, x, 1, baselines=x * NAN), BadOption, "baselines contains nan"),
    (lambda n, x: explainers.gradient_shap(n, x, 1, baselines=x.numpy()), BadOption, "baselines is a NumPy array"),
    (lambda n, x: saliency(n, x, 1, through=("net.conv2", [-1])), BadTarget, "channel"),
    (lambda n, x: grad_cam(n, x, layer="net.head"), explainers.NoSpatialOutput, "head"),
    (lambda n, x: integrated_gradients(plain().half(), x.half(), 1, baseline=1e6), BadOption, "torch.float16"),
    (lambda n, x: explain("saliency", n, x).overlay([torch.rand(3, 12, 16)]), ValueError, "3 maps"),
    # Classes, cells and channels that do not exist
    (lambda n, x: saliency(n, x, 5000), BadTarget, "5000.*7"),
    (lambda n, x: METHODS["rise"](n, x, [0, 1, 7]), BadTarget, "Class 7 does not exist"),
    (lambda n, x: saliency(n, x, unit("net.conv2", 1, at=(99, 0))), BadTarget, "Cell"),
    (lambda n, x: saliency(n, x, unit("net.conv2", 99)), BadTarget, "[Cc]hannel"),
    (lambda n, x: saliency(n, x, 1, through=("net.conv2", [99])), BadTarget, "[Cc]hannel"),
    (lambda n, x: saliency(n, x, unit("net.conv3", 0)), LayerNotFound, "'net.conv2'"),
    (lambda n, x: saliency(n, x, 1, through=("conv9", [0])), LayerNotFound, "no layer 'conv9'"),
    (lambda n, x: saliency(n, x, 1, through="net.conv2"), ValueError, "Give "),
    (lambda n, x: occlusion(n, x, Through(1, "net.conv2", 0)), BadTarget, "only uses scores"),
    (lambda n, x: grad_cam(n, x, Through(1, "net.conv1", 0), layer="net.conv2"), BadTarget, "after the explained one"),
    (
        lambda n, x: METHODS["shapley_cam"](n, x, Through(1, "net.conv2", 0), layer="net.act1"),
        BadTarget,
        "first derivatives",
    ),
    *(
        (lambda n, x, name=name: METHODS[name](n, x, through=("net.conv1", [0])), BadTarget, "would have no effect")  # type: ignore[misc]
        for name in ("eigen_cam", "feature_maps", "fem", "edge_control")
    ),
    # Outputs that do not fit the target
    (lambda n, x: saliency(n, x, lambda scores: scores), BadTarget, "one score"),
    (lambda n, x: saliency(n, x, lambda scores: 3.0), BadTarget, "float"),
    (lambda n, x: occlusion(n, x, lambda scores: scores[:1, 0]), BadTarget, "one score"),
    (lambda n, x: saliency(n, x, Similarity(torch.ones(5))), BadTarget, r"5 values, .* shape \(3, 7\)"),
    (lambda n, x: saliency(segmentation(), x, Similarity(torch.ones(9))), BadTarget, r"output\['out'\] \(3, 4, 12"),
    (lambda n, x: masked((13, 16)), BadTarget, r"output has \(12, 16\).*interpolate"),
    (lambda n, x: masked((12, 16), 99), BadTarget, "0 to 3"),
    (lambda n, x: saliency(n, x, MaskScores(torch.ones(12, 16), 1)), BadTarget, r"\[N, K, H, W\]"),
    (lambda n, x: saliency(n, x, BoxScores(BOX, [3])), BadTarget, "BoxScores needs detections"),
]


def test_wrong_uses_that_a_forward_pass_shows_are_refused() -> None:
    for row in AFTER_A_PASS:
        check(row, Counting().eval(), random_images())


WRONG_BASELINES = [
    *(NAN, -INF, torch.full((3, 12, 16), NAN), torch.tensor(INF), torch.zeros(2, 12, 16), "blurr", True, [0.0] * 3),
    *(torch.zeros(3, 12, 16).bool(), torch.zeros(3, 12, 16, device="meta"), np.zeros((3, 12, 16))),
]


def test_invalid_baselines_are_refused_by_every_method_with_one() -> None:
    net = Counting(plain()).eval()
    for name, method in METHODS.items():
        options = {"base": "integrated_gradients"} if name == "forgrad" else {}
        for baseline in WRONG_BASELINES if "baseline" in method.options else ():
            with pytest.raises(BadOption, match="^baseline"):
                method(net, random_images(2), 1, baseline=baseline, **options)


DETACHED: list[Callable[[Tensor], Tensor]] = [
    lambda output: output[:, 1].detach(),
    lambda output: output.argmax(1).double(),
    lambda output: torch.tensor(output[:, 1].tolist()),
]


def test_a_target_that_detaches_is_refused_by_gradient_methods() -> None:
    for name in "saliency grad_cam integrated_gradients lrp deep_lift smooth_grad layer_cam full_grad".split():
        for target in DETACHED:
            with pytest.raises(BadTarget, match="without a gradient.*occlusion"):
                METHODS[name](plain(), random_images(2), target)


def test_errors_of_the_network_itself_are_not_changed() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("the size of this network is wrong")

    with pytest.raises(ValueError, match="the size of this network is wrong"):
        saliency(Broken().eval(), random_images())


# Refusals name the cause that is true: transforms of torch.func, sizes that change, parts that no hook sees


LIGHTS = lights(2)


class Between(Conv):
    """Runs a function of the inner convolution between the others."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = nn.Conv2d(6, 6, 3, 1, 1), function
        self.eval()

    def between(self, x: Tensor) -> Tensor:
        return self.function(self.inner, x)


class WhollyMapped(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda image: super(WhollyMapped, self).forward(image[None])[0])(x)


def mapped() -> nn.Module:
    return Between(lambda inner, x: torch.vmap(lambda image: inner(image[None])[0])(x))


def own_gradient() -> nn.Module:
    return Between(lambda inner, x: x + torch.func.grad(lambda y: inner(y).pow(2).sum())(x))


@pytest.mark.parametrize("make", [mapped, WhollyMapped, own_gradient])
def test_a_layer_inside_a_transform_is_refused_for_that_reason(make: Callable[[], nn.Module]) -> None:
    net = make()
    layer = "first" if make is WhollyMapped else "inner"
    calls: list[Callable[[], Any]] = [
        lambda: explainers.grad_cam(net, LIGHTS, 1, layer=layer),
        lambda: explainers.feature_maps(net, LIGHTS, layer=layer),
        lambda: explainers.list_layers(net, LIGHTS)[0 if make is WhollyMapped else 1].receptive_field((1, 1)),
        lambda: full_gradients(net, LIGHTS, 1),
    ]
    for call in calls:
        with pytest.raises((NoSpatialOutput, UnsupportedModel), match="a transform of torch.func"):
            call()
    for gradients in (False, True):
        with pytest.raises(UnsupportedModel, match=f"'{layer}' runs inside a transform"):
            with capture(net, layer, gradients=gradients):
                net(LIGHTS)
    if make is WhollyMapped:
        with pytest.raises(NoSpatialOutput, match="No layer.*a transform of torch.func"):
            explainers.grad_cam(net, LIGHTS, 1)
    if make is not own_gradient:
        with pytest.raises(ExplainerError, match=r"uses a transform of torch.func \(such as vmap\), for which LRP"):
            explainers.lrp(net, LIGHTS, 1)


class LargeIfMany(Conv):
    """Enlarges batches of more than four images."""

    def before(self, x: Tensor) -> Tensor:
        return F.interpolate(x, (48, 48)) if len(x) > 4 else x


def test_a_grid_that_depends_on_the_number_of_images() -> None:
    with pytest.raises(ExplainerError, match=r"had a grid of \(8, 8\) in another pass. Its size depends.*number"):
        explainers.grad_cam(LargeIfMany(), LIGHTS.repeat(3, 1, 1, 1), 1)


def test_a_layer_that_no_hook_sees() -> None:
    with pytest.raises(ExplainerError, match="'inner' did not run.*or the network calls its forward method directly"):
        explainers.grad_cam(Between(lambda inner, x: inner.forward(x)), LIGHTS, 1, layer="inner")
