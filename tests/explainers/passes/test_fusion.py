"""Several layers or windows: fuse, sweep, RefineCAM, SESS."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import explainers
from explainers import METHODS, BadOption, LayerNotFound, fuse, grad_cam, refine_cam, sess, sweep
from explainers.maps.resize import rank_correlation
from tests.support.nets import Residual, cam_by_hand, random_images, rel, residual, settle

CLASSES = [2, 0, 5]
LAYERS = ["layer2", "layer1", "conv1"]


# Fusion


def test_p44_each_map_is_normalized_then_resized_then_multiplied():
    """As in torchcam: each normalized map is resized to the image, then multiplied."""
    net, images = residual(), random_images()
    maps = [cam_by_hand(net, net.get_submodule(name), images, CLASSES).relu() for name in ("layer1", "layer2")]
    product = 1
    for m in maps:
        product = product * F.interpolate((m / m.amax((1, 2), keepdim=True))[:, None], (12, 16), mode="bilinear")[:, 0]
    actual = refine_cam(net, images, CLASSES, layers=["layer1", "layer2"], inner="grad_cam")
    torch.testing.assert_close(actual, product, rtol=1e-10, atol=1e-13)
    small = F.interpolate((maps[0] / maps[0].amax((1, 2), keepdim=True))[:, None], (6, 8), mode="bilinear")[:, 0]
    before = F.interpolate((small * maps[1] / maps[1].amax((1, 2), keepdim=True))[:, None], (12, 16), mode="bilinear")
    assert rel(actual, before[:, 0]) > 0.05, "another order is another map"


def test_p44_the_order_of_the_layers_does_not_matter():
    net, images = residual(), random_images()
    forward = refine_cam(net, images, CLASSES, layers=["layer1", "layer2", "conv1"])
    backward = refine_cam(net, images, CLASSES, layers=["conv1", "layer2", "layer1"])
    torch.testing.assert_close(forward, backward)


def test_refine_cam_defaults_to_the_last_three_stages():
    import torchvision

    net = settle(torchvision.models.resnet18(weights=None))
    images = torch.randn(1, 3, 64, 96)
    asked = refine_cam(net, images, 3, layers=["layer2", "layer3", "layer4"])
    assert torch.equal(refine_cam(net, images, 3), asked) and tuple(asked.shape) == (1, 64, 96)


def test_fused_means_keep_sign_and_unit():
    a, b = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 8, 12, dtype=torch.float64)
    large = F.interpolate(a[:, None], (8, 12), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(fuse({"late": a, "early": b}), (large + b) / 2)
    torch.testing.assert_close(fuse([b, a], "mean"), (large + b) / 2)
    assert tuple(fuse([a, b], "mean", size=(20, 30)).shape) == (2, 20, 30)
    torch.testing.assert_close(fuse([a]), a)


def test_fused_products_are_scale_invariant_and_zero_where_one_map_is():
    a, b = torch.rand(2, 4, 6, dtype=torch.float64), torch.rand(2, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(fuse([a, b], "product"), fuse([1000 * a, b / 7], "product"))
    assert fuse([a, b], "product").min() >= 0 and fuse([a, b], "product").max() <= 1
    b[1] = -b[1]
    found = fuse([a, b], "product")
    assert found[0].any() and not found[1].any() and found.isfinite().all()


# Sweep

GRID_METHODS = [name for name, each in METHODS.items() if each.takes_layer and each.returns == "grid" and not each.long]


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
    assert torch.equal(
        sweep("hires_cam", net, images, 1, layers=["layer1"], relu=True)["layer1"],
        explainers.hires_cam(net, images, 1, layer="layer1", relu=True),
    )


def test_sweep_refuses_wrong_use():
    net, images = residual(), random_images()
    with pytest.raises(BadOption, match="does not use a layer"):
        sweep("saliency", net, images)
    with pytest.raises(BadOption, match="Unknown method 'grad_cma'.*grad_cam"):
        sweep("grad_cma", net, images)
    with pytest.raises(BadOption, match="relu"):
        sweep("element_wise_grad_cam", net, images, relu=True)
    with pytest.raises(BadOption, match="relu='yes'"):
        sweep("grad_cam", net, images, relu="yes")
    with pytest.raises(LayerNotFound, match="layer1"):
        sweep("grad_cam", net, images, layers=["layre1"])


# SESS


def test_sess_uses_the_images_top_class_in_every_window():
    net, images = residual(), random_images(4)
    classes = net(images).argmax(1).tolist()
    assert torch.equal(sess(net, images, scales=2), sess(net, images, classes, scales=2))


def test_sess_depends_on_neither_chunk_size_nor_batch():
    net, images = residual(), random_images()
    expected = torch.cat([sess(net, images[n : n + 1], c, scales=3) for n, c in enumerate(CLASSES)])
    for size in (1, 7):
        found = sess(net, images, CLASSES, scales=3, batch_size=size)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_sess_of_a_saturated_class_is_not_blank():
    """Probabilities that underflow are compared relative to the highest."""
    net, images = residual(), random_images()
    for parameter in net.fc.parameters():
        parameter.data *= 1e4
    for c in range(7):
        expected = F.interpolate(grad_cam(net, images, c)[:, None], (12, 16), mode="bilinear")[:, 0]
        torch.testing.assert_close(sess(net, images, c, scales=1), expected, rtol=1e-10, atol=1e-9)


def test_sess_stopped_early_is_the_mean_of_the_windows_done():
    net, images = residual(), random_images()
    seen = []
    first = sess(net, images, CLASSES, scales=3, batch_size=1, progress=lambda p: seen.append(p.done) or False)
    torch.testing.assert_close(first, sess(net, images, CLASSES, scales=1), rtol=1e-10, atol=1e-13)
    assert seen == [1]


def test_sess_agrees_in_rank_with_grad_cam_package():
    """The package normalizes each window's map to [0, 1]; with one scale and one window both agree."""
    pytest.importorskip("pytorch_grad_cam.sess")
    from pytorch_grad_cam.sess import SESS
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    images = random_images(1, 3, 16, 16).float()
    net = settle(Residual(width=8))
    with SESS(net, [net.layer2], num_scales=1, smooth=False) as extractor:
        found = torch.from_numpy(extractor(images, [ClassifierOutputTarget(3)]))
    ours = sess(settle(Residual(width=8)), images, 3, layer="layer2", scales=1)
    assert rank_correlation(ours, found) > 0.999


def test_refine_cam_agrees_in_rank_with_torchcam():
    torchcam = pytest.importorskip("torchcam.methods")
    if not hasattr(torchcam, "RefineCAM"):
        pytest.skip("this torchcam has no RefineCAM")
    net, images = settle(Residual(width=16)), random_images(1).float()
    extractor = torchcam.RefineCAM(net, ["layer1", "layer2"], input_shape=(3, 12, 16), base_method=torchcam.GradCAM)
    with extractor:
        expected = extractor(3, net(images), normalized=False)[0]
    ours = refine_cam(settle(Residual(width=16)), images, 3, layers=["layer1", "layer2"], inner="grad_cam")
    assert rank_correlation(ours, expected) > 0.95
