"""Several layers or windows: fuse, sweep, RefineCAM, SESS."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchvision

import explainers
from explainers import METHODS, BadOption, LayerNotFound, fuse, grad_cam, refine_cam, sess, sweep
from explainers.maps.resize import rank_correlation
from tests.support.nets import Residual, cam_by_hand, random_images, rel, residual, settle

CLASSES = [2, 0, 5]
LAYERS = ["layer2", "layer1", "conv1"]


def resized(maps, size=(12, 16)):
    return F.interpolate(maps[:, None], size, mode="bilinear")[:, 0]


def normalized(maps):
    return maps / maps.amax((1, 2), keepdim=True)


# Fusion


def test_p44_each_map_is_normalized_then_resized_then_multiplied():
    """As in torchcam: each normalized map is resized to the image, then multiplied; in any order of the layers."""
    net, images = residual(), random_images()
    layers = ["layer1", "layer2"]
    maps = [normalized(cam_by_hand(net, net.get_submodule(name), images, CLASSES).relu()) for name in layers]
    found = refine_cam(net, images, CLASSES, layers=layers, inner="grad_cam")
    torch.testing.assert_close(found, resized(maps[0]) * resized(maps[1]), rtol=1e-10, atol=1e-13)
    assert rel(found, resized(resized(maps[0], (6, 8)) * maps[1])) > 0.05, "another order is another map"
    for names in (layers, LAYERS):
        forward, backward = (refine_cam(net, images, CLASSES, layers=each) for each in (names, names[::-1]))
        torch.testing.assert_close(forward, backward)


def test_refine_cam_defaults_to_the_last_three_stages():
    net = settle(torchvision.models.resnet18(weights=None))
    images = torch.randn(1, 3, 64, 96)
    asked = refine_cam(net, images, 3, layers=["layer2", "layer3", "layer4"])
    assert torch.equal(refine_cam(net, images, 3), asked) and tuple(asked.shape) == (1, 64, 96)


def test_fused_means_keep_sign_and_unit_and_products_are_scale_invariant():
    a, b = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 8, 12, dtype=torch.float64)
    for found in (fuse({"late": a, "early": b}), fuse([b, a], "mean")):
        torch.testing.assert_close(found, (resized(a, (8, 12)) + b) / 2)
    assert tuple(fuse([a, b], "mean", size=(20, 30)).shape) == (2, 20, 30)
    torch.testing.assert_close(fuse([a]), a)

    a, b = a.abs(), b.abs()
    found = fuse([a, b], "product")
    torch.testing.assert_close(found, fuse([1000 * a, b / 7], "product"))
    assert found.min() >= 0 and found.max() <= 1
    b[1] = -b[1]
    found = fuse([a, b], "product")
    assert found[0].any() and not found[1].any() and found.isfinite().all(), "zero where one map is"


# Sweep

GRID_METHODS = [name for name, each in METHODS.items() if each.takes_layer and each.returns == "grid" and not each.long]


@pytest.mark.sample
@pytest.mark.parametrize("name", [name for name in GRID_METHODS if name != "cam"])
def test_sweep_equals_calls_of_single_layers(name):
    net, images = residual(), random_images()
    try:
        alone = {layer: METHODS[name](net, images, CLASSES, layer=layer) for layer in LAYERS}
    except explainers.ExplainerError:
        pytest.skip("not a method for these layers")
    found = sweep(name, net, images, CLASSES, layers=LAYERS)
    assert list(found) == LAYERS
    for layer in LAYERS:
        torch.testing.assert_close(found[layer], alone[layer], rtol=1e-10, atol=1e-12)


def test_sweep_passes_options_and_accepts_modules():
    net, images = residual(), random_images()
    found = sweep("score_cam", net, images, CLASSES, layers=[net.layer2, "layer1"], weights="increase", batch_size=3)
    assert list(found) == ["layer2", "layer1"]
    expected = explainers.score_cam(net, images, CLASSES, layer="layer2", weights="increase")
    torch.testing.assert_close(found["layer2"], expected, rtol=1e-10, atol=1e-12)


def test_sweep_refuses_wrong_use():
    for name, options, words in (
        ("saliency", {}, "does not use a layer"),
        ("grad_cma", {}, "Unknown method 'grad_cma'.*grad_cam"),
        ("element_wise_grad_cam", {"relu": True}, "relu"),
        ("grad_cam", {"relu": "yes"}, "relu='yes'"),
        ("grad_cam", {"layers": ["layre1"]}, "layer1"),
    ):
        with pytest.raises(LayerNotFound if "layers" in options else BadOption, match=words):
            sweep(name, residual(), random_images(), **options)


# SESS


def test_sess_depends_on_neither_chunk_size_nor_batch_and_its_class_is_the_images_top():
    net, images = residual(), random_images()
    expected = torch.cat([sess(net, images[n : n + 1], c, scales=3) for n, c in enumerate(CLASSES)])
    for size in (1, 7):
        found = sess(net, images, CLASSES, scales=3, batch_size=size)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    top = net(images).argmax(1).tolist()
    assert torch.equal(sess(net, images, scales=2), sess(net, images, top, scales=2))


def test_sess_of_a_saturated_class_is_not_blank():
    """Probabilities that underflow are compared relative to the highest."""
    net, images = residual(), random_images()
    for parameter in net.fc.parameters():
        parameter.data *= 1e4
    for c in range(7):
        expected = resized(grad_cam(net, images, c))
        torch.testing.assert_close(sess(net, images, c, scales=1), expected, rtol=1e-10, atol=1e-9)


def test_sess_stopped_early_is_the_mean_of_the_windows_done():
    net, images, seen = residual(), random_images(), []
    first = sess(net, images, CLASSES, scales=3, batch_size=1, progress=lambda p: seen.append(p.done) or False)
    torch.testing.assert_close(first, sess(net, images, CLASSES, scales=1), rtol=1e-10, atol=1e-13)
    assert seen == [1]


# Ranks of packages


def test_sess_agrees_in_rank_with_grad_cam_package():
    """The package normalizes each window's map to [0, 1]; with one scale and one window both agree."""
    package = pytest.importorskip("pytorch_grad_cam.sess")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, images = settle(Residual(width=8)), random_images(1, 3, 16, 16).float()
    with package.SESS(net, [net.layer2], num_scales=1, smooth=False) as extractor:
        found = torch.from_numpy(extractor(images, [ClassifierOutputTarget(3)]))
    ours = sess(settle(Residual(width=8)), images, 3, layer="layer2", scales=1)
    assert rank_correlation(ours, found) > 0.999


def test_refine_cam_agrees_in_rank_with_torchcam():
    torchcam = pytest.importorskip("torchcam.methods")
    if not hasattr(torchcam, "RefineCAM"):
        pytest.skip("this torchcam has no RefineCAM")
    net, images, layers = settle(Residual(width=16)), random_images(1).float(), ["layer1", "layer2"]
    with torchcam.RefineCAM(net, layers, input_shape=(3, 12, 16), base_method=torchcam.GradCAM) as extractor:
        expected = extractor(3, net(images), normalized=False)[0]
    ours = refine_cam(settle(Residual(width=16)), images, 3, layers=layers, inner="grad_cam")
    assert rank_correlation(ours, expected) > 0.95
