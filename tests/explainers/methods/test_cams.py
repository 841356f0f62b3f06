"""Class-activation maps: closed forms, identities, published numbers, agreement with other libraries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import (
    METHODS,
    ablation_cam,
    channel_effects,
    explain,
    feature_maps,
    grad_cam,
    grad_cam_pp,
    grad_cam_sweep,
    hires_cam,
    layer_cam,
    xgrad_cam,
)
from explainers.maps.resize import reduce_channels
from tests.support.nets import (
    OneConv,
    Residual,
    act_grad,
    cam_by_hand,
    curved,
    plain,
    ramp,
    random_images,
    rel,
    residual,
    settle,
)

CLASSES = [2, 0, 5]


@pytest.fixture(name="pooled_linear_net")
def _pooled_linear_net():
    return plain()


def test_grad_cam_is_cam_divided_by_the_map_area(pooled_linear_net):
    """Oracle: Zhou et al. 2016. The pool spreads w_k evenly, so dY/dA_k = w_k / (h w) in every cell."""
    images = random_images()
    a = pooled_linear_net[:4](images).detach()
    cam = torch.einsum("nk,nkhw->nhw", pooled_linear_net.head.weight[CLASSES], a)
    expected = (cam / (6 * 8)).relu().detach()

    actual = grad_cam(pooled_linear_net, images, CLASSES, layer="relu2")

    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    assert (expected == 0).any() and (expected > 0).any(), "the ReLU must have had something to do"


@pytest.mark.parametrize("method", [grad_cam, hires_cam, xgrad_cam], ids=lambda m: m.__name__)
def test_signed_sums_are_the_logit_without_bias(method):
    """Under a pooled linear head Grad-CAM, HiResCAM and XGrad-CAM all sum to logit - bias."""
    net, images = plain(), random_images()
    logits = net(images)[range(3), CLASSES].detach()

    actual = method(net, images, CLASSES, layer="relu2", relu=False).sum((1, 2))

    torch.testing.assert_close(actual, logits - net.head.bias[CLASSES].detach(), rtol=1e-12, atol=1e-14)


def test_grad_cam_of_a_position_dependent_head_by_hand():
    net, images = curved(), random_images()
    expected = cam_by_hand(net, net.act2, images, CLASSES)
    assert (expected > 0).any() and (expected < 0).any()
    torch.testing.assert_close(
        grad_cam(net, images, CLASSES, layer="act2", relu=False), expected, rtol=1e-12, atol=1e-15
    )
    torch.testing.assert_close(grad_cam(net, images, CLASSES, layer="act2"), expected.relu(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("layer", ["conv1", "conv2", "act2", "act1"])
def test_hires_cam_at_every_layer_by_hand(layer):
    net, images = curved(), random_images()
    a, g, _ = act_grad(net, net.get_submodule(layer), images, CLASSES)
    torch.testing.assert_close(hires_cam(net, images, CLASSES, layer=layer), (a * g).sum(1), rtol=1e-12, atol=1e-15)


def test_hires_cam_default_keeps_the_sign_as_its_paper():
    """Draelos and Carin 2020, eq. 2: no ReLU."""
    net, images = curved(), random_images()
    signed = hires_cam(net, images, CLASSES, layer="act2")
    assert signed.min() < 0
    assert torch.equal(hires_cam(net, images, CLASSES, layer="act2", relu=True), signed.relu())


@pytest.mark.parametrize(
    "method", [grad_cam, grad_cam_pp, layer_cam, xgrad_cam, ablation_cam], ids=lambda m: m.__name__
)
def test_the_relu_option_clamps_the_signed_map(method):
    net, images = residual(), random_images(4)
    signed = method(net, images, 2, layer="layer2.bn2", relu=False)
    drawn = method(net, images, 2, layer="layer2.bn2")
    assert torch.equal(drawn, signed.relu()) and torch.equal(
        drawn, method(net, images, 2, layer="layer2.bn2", relu=True)
    )
    assert signed.min() < 0


def test_layer_cam_equals_hires_cam_if_all_gradients_are_positive():
    net, images = plain(), random_images()
    net.head.weight.data.abs_()
    torch.testing.assert_close(layer_cam(net, images, 1, layer="relu2"), hires_cam(net, images, 1, layer="relu2"))


def test_grad_cam_pp_of_one_active_cell_has_a_closed_form():
    """A single positive cell a with gradient g > 0: alpha = g^2 / (2 g^2 + a g^3), weight = alpha g, map = weight a."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x):
            y = self.layer(x)
            return torch.stack([2.0 * y[:, 0, 1, 1], -3.0 * y[:, 0, 1, 1]], 1)

    x = torch.zeros(1, 1, 2, 3, dtype=torch.float64)
    x[0, 0, 1, 1] = 0.5
    found = grad_cam_pp(Cell(), x, 0, layer="layer")
    expected = 4.0 / (8.0 + 0.5 * 8.0) * 2.0 * 0.5
    assert found[0, 1, 1].item() == pytest.approx(expected, rel=1e-14) and found.count_nonzero() == 1
    assert grad_cam_pp(Cell(), x, 1, layer="layer").count_nonzero() == 0, "no positive gradient, no weight"


def test_xgrad_cam_is_finite_if_activations_sum_to_zero():
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x):
            y = self.layer(x)
            return torch.stack([y.sum((1, 2, 3)), y[:, :1].sum((1, 2, 3))], 1)

    x = torch.zeros(1, 2, 2, 3, dtype=torch.float64)
    x[0, 1] = 1.0
    found = xgrad_cam(Zero(), x, 0, layer="layer")
    assert torch.equal(found, torch.ones(1, 2, 3, dtype=torch.float64)), "the dead channel weighs nothing"


# Published numbers: captum's tests, BSD licence


def test_published_grad_cam():
    published = torch.tensor([[[11.25, 13.5], [20.25, 22.5]]])
    assert torch.equal(grad_cam(OneConv(), ramp(), 0, layer="conv1"), published)
    assert torch.equal(grad_cam(OneConv(), ramp(), 0, layer="relu1"), torch.tensor([[[0.0, 4.0], [28.0, 32.5]]]))
    assert torch.equal(grad_cam(OneConv().requires_grad_(False), ramp(), 0, layer="conv1"), published)
    assert torch.equal(grad_cam(OneConv(inplace=True), ramp(), 0, layer="conv1"), published)


# Sweep


def test_sweep_equals_single_layer_calls():
    net, images = residual(), random_images()
    layers = ["layer1", "conv1", "layer2", "layer1.relu#0"]
    sweep = grad_cam_sweep(net, images, CLASSES, layers=layers)
    assert set(sweep) == set(layers)
    for name, found in sweep.items():
        torch.testing.assert_close(found, grad_cam(net, images, CLASSES, layer=name), rtol=1e-12, atol=1e-15)
        assert not found.requires_grad


def test_sweep_defaults_to_the_stages_in_order():
    import torchvision

    net = settle(torchvision.models.resnet18(weights=None))
    sweep = grad_cam_sweep(net, torch.randn(2, 3, 64, 96), [1, 2])
    names = [name for name in sweep if name.startswith("layer")]
    assert names == ["layer1", "layer2", "layer3", "layer4"]
    assert [tuple(sweep[name].shape) for name in names] == [(2, 16, 24), (2, 8, 12), (2, 4, 6), (2, 2, 3)]


def test_sweep_runs_one_forward():
    net, images, count = residual(), random_images(), []
    handle = net.conv1.register_forward_hook(lambda *a: count.append(1))
    grad_cam_sweep(net, images, CLASSES, layers=["layer1", "layer2"])
    first = len(count)
    grad_cam_sweep(net, images, CLASSES, layers=["layer1", "layer2"])
    handle.remove()
    assert len(count) - first == 1


# Ablation, channel effects, features


def test_channel_effects_of_a_linear_head_in_closed_form():
    """y - y(A_k = 0) = w_k mean(A_k) for a pooled linear head."""
    net, images = plain(), random_images()
    a = net[:4](images).detach()
    expected = net.head.weight[CLASSES].detach() * a.mean((2, 3))
    actual = channel_effects(net, images, CLASSES, layer="relu2")
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)


def test_ablation_cam_of_a_linear_head_in_closed_form():
    net, images = plain(), random_images()
    a = net[:4](images).detach()
    weights = net.head.weight[CLASSES].detach() * a.mean((2, 3))
    expected = torch.einsum("nk,nkhw->nhw", weights, a)
    torch.testing.assert_close(
        ablation_cam(net, images, CLASSES, layer="relu2", relu=False), expected, rtol=1e-10, atol=1e-13
    )


def test_channel_effects_inside_a_residual_block():
    """The expanded batch at a layer inside the block is added to the skip of one image: it must broadcast."""
    net, images = residual(), random_images()
    from tests.support.oracles import drops_by_hand

    expected, _ = drops_by_hand(net, net.layer2.bn2, images, CLASSES)
    torch.testing.assert_close(
        channel_effects(net, images, CLASSES, layer="layer2.bn2"), expected, rtol=1e-9, atol=1e-12
    )


def test_channel_effects_with_a_suffix_of_fixed_batch_size():
    class Fixed(nn.Module):
        """Reshapes with the batch size of its input."""

        def __init__(self):
            super().__init__()
            self.first = plain()[:4]
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.first(x).view(x.shape[0], 8, -1).mean(2))

    net, images = settle(Fixed().double()), random_images()
    from tests.support.oracles import drops_by_hand

    expected, _ = drops_by_hand(net, net.first.relu2, images, [1, 2, 3])
    actual = channel_effects(net, images, [1, 2, 3], layer="first.relu2")
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_channel_effects_with_a_suffix_that_flattens_the_batch():
    """A suffix that folds the batch axis into another could read the copies of an image as one image."""

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = plain()[:4]
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            y = self.first(x)
            return self.head(y.reshape(-1, 8, y.shape[2] * y.shape[3]).mean(2))

    net, images = settle(One().double()), random_images()
    from tests.support.oracles import drops_by_hand

    expected, _ = drops_by_hand(net, net.first.relu2, images, [1, 2, 3])
    torch.testing.assert_close(
        channel_effects(net, images, [1, 2, 3], layer="first.relu2"), expected, rtol=1e-9, atol=1e-12
    )


def test_feature_maps_stop_the_forward_pass_at_the_layer():
    """Layers after the requested one are not computed."""
    net, images = residual(), random_images()
    feature_maps(net, images, layer="conv1")  # the first call counts module calls in a full forward
    expected = net.layer1(net.relu(net.bn1(net.conv1(images)))).detach()
    net.fuse.light(AssertionError("continued"), 0)
    assert torch.equal(feature_maps(net, images, layer="layer1"), expected)


def test_feature_maps_of_channels_last_layers_are_channels_first():
    import torchvision

    config = torchvision.models.convnext.CNBlockConfig
    net = torchvision.models.ConvNeXt([config(8, 16, 1), config(16, None, 2)]).eval()
    maps = feature_maps(net, torch.randn(2, 3, 64, 96), layer="features.1.0.block.2")
    assert tuple(maps.shape) == (2, 8, 16, 24)


# Explanations


def test_explain_map_and_raw_come_from_one_computation():
    net, images = residual(), random_images()
    e = explain("grad_cam", net, images, CLASSES, layer="layer2")
    signed = grad_cam(net, images, CLASSES, layer="layer2", relu=False)
    assert torch.equal(e.map, signed.relu()) and torch.equal(e.raw, signed)
    assert e.layer == "layer2" and e.target == CLASSES and e.method == "grad_cam"
    torch.testing.assert_close(e.scores, net(images).detach())
    assert len(e.statistics) == len(e.findings) == 3 and e.seconds > 0


@pytest.mark.parametrize("method", ["grad_cam", "saliency"])
def test_explain_runs_one_forward_for_target_and_runner_up(method):
    """The runner-up's map, which tests class sensitivity, is computed from the same graph."""
    net, images, count = residual(), random_images(), []
    layer = {"layer": "layer2"} if method == "grad_cam" else {}
    METHODS[method](net, images, **layer)  # the first call of all looks at the layers
    handle = net.conv1.register_forward_hook(lambda *a: count.append(1))
    METHODS[method](net, images, **layer)
    alone = len(count)
    explain(method, net, images, **layer)
    handle.remove()
    assert alone == 1 and len(count) - alone == 1


COMPARED = [
    name
    for name, method in METHODS.items()
    if method.reads_class and not method.long and method.returns in ("grid", "pixels", "heat")
]
"""The methods whose map `explain` compares with the runner-up's."""


@pytest.mark.parametrize("method", COMPARED)
def test_the_runner_ups_map_equals_a_separate_call(method, monkeypatch):
    """Oracle: a separate call for the runner-up, bit-identical; another target never reuses an old graph."""
    from explainers.explanation import run

    maps = []
    real = run.rank_correlation
    monkeypatch.setattr(run, "rank_correlation", lambda a, b: (maps.append((a, b)), real(a, b))[1])
    net, images = (plain() if method == "cam" else residual()), random_images()
    if reason := METHODS[method].applies(net):
        pytest.skip(reason)
    second = net(images).topk(2, dim=1).indices[:, 1]
    plain_call = {"relu": False} if METHODS[method].relu is not None else {}

    e = explain(method, net, images)
    expected = METHODS[method](net, images, second, **plain_call)

    ((own, other),) = maps
    if expected.ndim == 4:
        expected = reduce_channels(expected, METHODS[method].reduce)
    torch.testing.assert_close(other, expected, rtol=0, atol=0)
    assert not torch.equal(own, other) and e.map.shape == own.shape


# Agreement with other libraries


def resnet(seed=0):
    import torchvision

    return settle(torchvision.models.resnet18(weights=None), seed)


def test_grad_cam_and_hires_cam_agree_with_captum():
    captum = pytest.importorskip("captum.attr")
    net, images = resnet(), torch.randn(2, 3, 64, 96)
    for layer in ("layer4", "layer2"):
        module = net.get_submodule(layer)
        theirs = captum.LayerGradCam(net, module).attribute(images, [3, 5])[:, 0].detach()
        assert rel(grad_cam(net, images, [3, 5], layer=layer, relu=False), theirs) < 1e-5
        theirs = captum.LayerGradientXActivation(net, module).attribute(images, [3, 5]).sum(1).detach()
        assert rel(hires_cam(net, images, [3, 5], layer=layer), theirs) < 1e-5


@pytest.mark.parametrize(("theirs", "ours"), [("XGradCAM", xgrad_cam), ("LayerCAM", layer_cam), ("GradCAM", grad_cam)])
def test_cams_agree_with_torchcam(theirs, ours):
    torchcam = pytest.importorskip("torchcam.methods")
    net = settle(Residual(width=16))
    images = random_images(1).float()
    with getattr(torchcam, theirs)(net, target_layer="layer2") as extractor:
        scores = net(images)
        expected = extractor(3, scores, normalized=False)[0]
    assert rel(ours(net, images, 3, layer="layer2"), expected) < 1e-5
    assert expected.any()


def test_ablation_cam_agrees_with_grad_cam_package_if_the_score_is_positive():
    """The package divides the drops of the score by the score."""
    pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam import AblationCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, images = settle(Residual(width=8), 3), random_images(1).float()
    scores = net(images).detach()[0]
    best = int(scores.argmax())
    assert scores[best] > 0
    with AblationCAM(net, [net.layer2]) as cam:
        cam.batch_size = 4
        maps = cam(images, [ClassifierOutputTarget(best)])
    ours = ablation_cam(settle(Residual(width=8), 3), images, best, layer="layer2")
    ours = torch.nn.functional.interpolate(ours[None], images.shape[2:], mode="bilinear", align_corners=False)[0, 0]
    ours = (ours - ours.min()) / (ours.max() - ours.min())
    low = torch.from_numpy(maps[0])
    # The package normalizes before and after the resize, this library once: equal up to that scaling.
    assert torch.corrcoef(torch.stack([ours.flatten(), low.flatten().float()]))[0, 1] > 0.9999
