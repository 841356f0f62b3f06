"""Invalid images, baselines, options and layers raise an error with a message, unless the intent is clear."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import explainers
from explainers import (
    METHODS,
    BadImages,
    BadOption,
    check_explainer,
    default_layer,
    explain,
    grad_cam,
    grad_cam_sweep,
    integrated_gradients,
    occlusion,
    overlay,
    saliency,
    sweep,
)
from tests.support.nets import curved, plain, random_images, residual

NAN, INF = float("nan"), float("inf")


# Images and baselines


@pytest.mark.parametrize("shape", [(), (4,), (4, 4), (3, 4, 4), (1, 1, 1, 3, 4, 4)])
def test_images_must_have_four_dimensions(shape):
    with pytest.raises(BadImages, match=r"must have 4 dimensions, \[N, C, H, W\]"):
        saliency(plain(), torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    "shape, remedy", [((1, 1, 3, 4, 4), r"images\[0\]"), ((2, 2, 3, 4, 4), r"images\.flatten\(0, 1\)")]
)
def test_a_batch_of_batches_is_refused(shape, remedy):
    with pytest.raises(
        BadImages, match=rf"the model takes images \[N, C, H, W\]\. For a batch of batches, give {remedy}"
    ):
        saliency(plain(), torch.zeros(shape, dtype=torch.float64))


def test_images_without_values_are_refused():
    for images, reason in ((random_images().to("meta"), "on the meta device"), (random_images().to_sparse(), "sparse")):
        with pytest.raises(BadImages, match=reason):
            saliency(plain(), images)


WRONG_BASELINES = [
    NAN,
    INF,
    -INF,
    torch.full((3, 12, 16), NAN),
    torch.tensor(INF),
    torch.zeros(2, 12, 16),
    torch.zeros(3, 12, 16, dtype=torch.bool),
    torch.zeros(3, 12, 16, dtype=torch.complex64),
    torch.zeros(3, 12, 16, device="meta"),
    np.zeros((3, 12, 16)),
    [0.0, 0.0, 0.0],
    True,
    "blurr",
]
WITH_BASELINE = [name for name, method in METHODS.items() if "baseline" in method.options]


@pytest.mark.parametrize("name", WITH_BASELINE)
def test_invalid_baselines_are_refused(name):
    net, options = plain(), {"base": "integrated_gradients"} if name == "forgrad" else {}
    for baseline in WRONG_BASELINES:
        with pytest.raises(BadOption, match="^baseline"):
            METHODS[name](net, random_images(2), 1, baseline=baseline, **options)


def test_other_baselines_bounds_and_half_precision():
    with pytest.raises(BadOption, match="baselines contains nan"):
        explainers.gradient_shap(plain(), random_images(), 1, baselines=torch.full((2, 3, 12, 16), NAN))
    with pytest.raises(BadOption, match="baselines is a NumPy array"):
        explainers.gradient_shap(plain(), random_images(), 1, baselines=np.zeros((2, 3, 12, 16)))
    with pytest.raises(BadOption, match="low"):
        explainers.lrp(plain(), random_images(), 1, low=NAN)
    with pytest.raises(BadOption, match="finite in torch.float16"):
        integrated_gradients(plain().half(), random_images().half(), 1, baseline=1e6)


# Options and maps


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda n, x: grad_cam(n, x, 1, layer=["conv1", "conv2"]), "has 2 layers"),
        (lambda n, x: grad_cam_sweep(n, x, 1, layers=3), "layers="),
        (lambda n, x: grad_cam_sweep(n, x, 1, layers=[]), "layers="),
        (lambda n, x: occlusion(n, x, 1, progress=3), "progress="),
        (lambda n, x: explain("grad_cam", n, x, 1, reduce="summ"), "reduce="),
        (lambda n, x: explain("grad_cam", n, x, 1, trained_size="big"), "trained_size="),
        (lambda n, x: explainers.smooth_grad(n, x, 1, seed=-1), "2147483647"),
        (lambda n, x: check_explainer(grad_cam, model="resnet18"), "model is a str"),
    ],
)
def test_invalid_options_are_refused(call, words):
    with pytest.raises((BadOption, TypeError), match=words):
        call(curved(), random_images())


def test_overlay_accepts_pixels_if_their_format_is_clear():
    image = Image.effect_noise((16, 12), 90).convert("RGB")
    array, heat = np.asarray(image), torch.rand(3, 4)
    expected = overlay(image, heat).tobytes()
    planes = torch.from_numpy(array.copy()).permute(2, 0, 1)
    for given in (array, planes, array / 255, planes.float() / 255, planes.double() / 255):
        assert overlay(given, heat).tobytes() == expected
    grey = Image.effect_noise((16, 12), 90)
    assert overlay(np.asarray(grey), heat).tobytes() == overlay(grey, heat).tobytes()
    e = explain("grad_cam", curved(), random_images(), 1, layer="conv2")
    assert len(e.overlay(planes.expand(3, -1, -1, -1))) == 3


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (torch.randn(3, 12, 16), "normalized"),
        (torch.full((3, 12, 16), NAN), "normalized"),
        (torch.rand(1, 3, 12, 16), "For a batch"),
        (torch.rand(5, 12, 16), "shape"),
        (torch.ones(3, 12, 16).long(), "uint8"),
        ("cat.png", "PIL.Image.open"),
        (None, "Pillow"),
    ],
)
def test_overlay_refuses_other_images(image, words):
    with pytest.raises((TypeError, ValueError), match=words):
        overlay(image, torch.rand(3, 4))


def test_maps_refuse_wrong_arguments():
    image, heat = Image.new("RGB", (16, 12)), torch.rand(3, 4)
    for limits in (1, (0, 1, 2), ("a", "b"), (0, NAN), (1, 0)):
        with pytest.raises(BadOption, match="limits="):
            overlay(image, heat, limits=limits)
    with pytest.raises(BadOption, match="opacity"):
        overlay(image, heat, opacity="half")
    with pytest.raises(ValueError, match="size 12"):
        explainers.regions(heat, 12)
    with pytest.raises(BadOption, match="threshold"):
        explainers.regions(heat, (12, 16), threshold="half")
    for maps in ({"a": heat[None].numpy()}, {"a": heat}, {}):
        with pytest.raises(BadOption, match="The maps have shapes"):
            explainers.fuse(maps)


# Layers that run again


def test_check_explainer_if_the_default_layer_is_a_call_of_a_module():
    """A residual network that reuses one activation: its default layer is act#2, which no module is called."""

    class Reusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 6, 3, 2), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 3)
            self.act, self.head = nn.ReLU(), nn.Linear(6, 5)

        def forward(self, x):
            for conv in (self.conv1, self.conv2, self.conv3):
                x = self.act(conv(x))
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    net = Reusing().eval()
    assert default_layer(net, torch.randn(3, 3, 24, 20)) == "act#2"
    report = check_explainer(grad_cam, model=net, images=torch.randn(3, 3, 24, 20))
    assert report["layers"].passed, report["layers"]


def test_a_sweep_contains_the_default_layer():
    pytest.importorskip("torchvision")
    from torchvision.models import mobilenet_v3_small

    for net, images in ((mobilenet_v3_small().eval(), torch.randn(1, 3, 64, 96)), (residual(), random_images())):
        name = default_layer(net, images)
        maps = grad_cam_sweep(net, images, 1)
        assert name in maps
        torch.testing.assert_close(maps[name], grad_cam(net, images, 1))
        assert name in sweep("layer_cam", net, images, 1)
