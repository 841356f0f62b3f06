"""Networks with several images as input: captum, one tensor that the network splits, sums, differences, errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import explainers
from explainers import METHODS, BadImages, BadOption, UnsupportedModel, explain
from tests.support.nets import rel

pytestmark = pytest.mark.sample

TOGETHER = [name for name, each in METHODS.items() if each.together]
SMALL = {"samples": 4, "steps": 5, "scales": 2}
CLASSES = [1, 2]


class Fusion(nn.Module):
    """An image and a second one of any size; the branches multiply, so that neither can be explained alone."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 6, 3, 1, 1), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 6, 3, 1, 1), nn.ReLU())
        self.head = nn.Linear(6, 4)

    def forward(self, image, depth):
        return self.head(self.image(image).mean((2, 3)) * 3 * self.depth(depth).mean((2, 3)))


class Split(nn.Module):
    """The same network for one tensor: the second image is in the last channels, at the top left."""

    def __init__(self, net: nn.Module, sides: tuple[int, int]) -> None:
        super().__init__()
        self.net, self.sides = net, sides

    def forward(self, both):
        rows, columns = self.sides
        return self.net(both[:, :3].contiguous(), both[:, 3:, :rows, :columns].contiguous())


def fusion(channels: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return Fusion(channels).double().eval()


def images(rows: int = 12, columns: int = 8, channels: int = 1):
    """Two images and two of another size, with the same smallest and largest value, so that noise has one scale."""
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 3, 12, 8), (2, channels, rows, columns)
    inputs = tuple(torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1 for shape in shapes)
    for each in inputs:
        each[:, 0, 0, 0], each[:, 0, 0, 1] = -1, 1
    return inputs


def joined(inputs):
    """Both inputs as one tensor for `Split`."""
    image, depth = inputs
    padding = (0, image.shape[3] - depth.shape[3], 0, image.shape[2] - depth.shape[2])
    return torch.cat([image, functional.pad(depth, padding)], 1)


def options_of(name):
    return {key: value for key, value in SMALL.items() if key in METHODS[name].options}


def attribute(name, net, given, target=CLASSES, **options):
    return METHODS[name](net, given, target, **options_of(name), **options)


# One tensor that the network splits


@pytest.mark.parametrize("name", TOGETHER)
def test_the_parts_are_those_of_one_tensor(name):
    """An input of another size is a part of a padded tensor, to which random methods add other noise."""
    net = fusion()
    for rows, columns in ((12, 8),) if "seed" in METHODS[name].options else ((12, 8), (6, 4)):
        inputs = images(rows, columns)
        found = attribute(name, net, inputs)
        expected = attribute(name, Split(net, (rows, columns)), joined(inputs))
        for own, part in zip(found, (expected[:, :3], expected[:, 3:, :rows, :columns]), strict=True):
            assert rel(own, part) < 1e-9


@pytest.mark.parametrize("baseline", ["mean", "blur", 0.3])
def test_a_baseline_is_that_of_each_input(baseline):
    net, (image, depth) = fusion(), images(6, 4)
    found = explainers.integrated_gradients(net, (image, depth), 1, steps=200, baseline=baseline)
    for n in range(2):
        own = [explainers.perturbation.baselines.baseline_of(each[n : n + 1], baseline) for each in (image, depth)]
        with torch.no_grad():
            rise = net(image, depth)[n, 1] - net(*own)[0, 1]
        torch.testing.assert_close(sum(each[n].sum() for each in found), rise, rtol=1e-2, atol=1e-9)


def test_each_image_of_a_batch_is_as_alone():
    net, inputs = fusion(), images(6, 4)
    for name in ("saliency", "smooth_grad", "integrated_gradients", "occlusion", "grad_cam"):
        whole = attribute(name, net, inputs)
        alone = [attribute(name, net, tuple(each[n : n + 1] for each in inputs), CLASSES[n]) for n in range(2)]
        for part, *singles in zip(whole, *alone, strict=True) if isinstance(whole, tuple) else [(whole, *alone)]:
            torch.testing.assert_close(part, torch.cat(singles), rtol=1e-9, atol=1e-12)


# Captum


def test_attributions_agree_with_captum():
    captum = pytest.importorskip("captum.attr")
    net, inputs = fusion(), images(6, 4)
    starts, windows = (0.5, -inputs[1]), ((3, 2, 2), (1, 2, 2))
    path = captum.IntegratedGradients(net)
    theirs = {
        "saliency": captum.Saliency(net).attribute(inputs, CLASSES, abs=False),
        "input_x_gradient": captum.InputXGradient(net).attribute(inputs, CLASSES),
        "integrated_gradients": path.attribute(inputs, target=CLASSES, n_steps=5),
        "guided_backprop": captum.GuidedBackprop(fusion()).attribute(inputs, CLASSES),
        "deconvnet": captum.Deconvolution(fusion()).attribute(inputs, CLASSES),
    }
    pairs = {name: (attribute(name, net, inputs), expected) for name, expected in theirs.items()}
    pairs["baselines"] = (
        explainers.integrated_gradients(net, inputs, CLASSES, steps=5, baseline=starts),
        path.attribute(inputs, starts, target=CLASSES, n_steps=5),
    )
    for name, (found, expected) in pairs.items():
        torch.testing.assert_close(found, tuple(each.detach() for each in expected), rtol=1e-6, atol=1e-9, msg=name)
    # Windows change one input at a time; captum's values are sums over a window.
    found = explainers.occlusion(net, inputs, CLASSES, window=2, stride=2)
    occluded = captum.Occlusion(net).attribute(inputs, windows, windows, target=CLASSES)
    for own, part in zip(found, occluded, strict=True):
        torch.testing.assert_close(4 * own.float(), part[:, 0], rtol=1e-4, atol=1e-8)


# Sums and differences


def test_saliency_is_the_quotient_of_differences():
    net, inputs = fusion(), images(6, 4)
    found = explainers.saliency(net, inputs, CLASSES)
    for which, place in ((0, (0, 2, 5, 3)), (0, (1, 0, 11, 7)), (1, (0, 0, 3, 2)), (1, (1, 0, 0, 3))):
        moved = [each.clone() for each in inputs]
        moved[which][place] += 1e-6
        with torch.no_grad():
            rise = (net(*moved) - net(*inputs))[place[0], CLASSES[place[0]]] / 1e-6
        torch.testing.assert_close(found[which][place], rise, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["integrated_gradients", "deep_lift", "guided_integrated_gradients"])
def test_the_sum_over_all_inputs_is_the_rise_of_the_score(name):
    net, inputs = fusion(), images(6, 4)
    options = {"steps": 1000} if "steps" in METHODS[name].options else {}
    found = METHODS[name](net, inputs, CLASSES, **options)
    with torch.no_grad():
        scores, start = net(*inputs), net(*(torch.zeros_like(each) for each in inputs))
    rises = (scores - start)[[0, 1], CLASSES]
    torch.testing.assert_close(sum(each.flatten(1).sum(1) for each in found), rises, rtol=5e-3, atol=1e-9)


def test_noise_has_the_scale_of_each_input():
    """An input in units of a hundredth gets a hundredth of the noise, so that units do not matter."""
    net, (image, depth) = fusion(), images(6, 4)
    expected = explainers.smooth_grad(net, (image, depth), 1, samples=4)
    found = explainers.smooth_grad(net, (image, depth / 100), 1, samples=4, forward=lambda a, b: net(a, 100 * b))
    torch.testing.assert_close(found, (expected[0], 100 * expected[1]), rtol=1e-6, atol=1e-12)


# Other methods


def test_a_layer_is_explained_once_and_the_layer_of_the_other_input_too():
    net, inputs = fusion(), images(6, 4)
    first, second = (explainers.grad_cam(net, inputs, 1, layer=layer) for layer in ("image", "depth"))
    assert first.shape == (2, 6, 4) and second.shape == (2, 3, 2)
    one = explainers.grad_cam(net, inputs[1], 1, layer="depth", forward=lambda depth: net(inputs[0], depth))
    torch.testing.assert_close(second, one)


def test_layers_of_all_inputs_are_listed_with_their_grids():
    net, inputs = fusion(), images(6, 4)
    grids = {layer.name: layer.grid for layer in explainers.list_layers(net, inputs, spatial=True)}
    assert grids["image"] == (6, 4) and grids["depth"] == (3, 2)
    assert explainers.default_layer(net, inputs) == explain("grad_cam", net, inputs, 1).layer == "image"
    found = explain("grad_cam", net, inputs, CLASSES, layer="depth")
    assert torch.equal(found.images, inputs[1]) and found.layer == "depth" and found.map.shape == (2, 3, 2)


def test_every_method_explains_videos_or_refuses_them():
    class Clips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Conv3d(3, 4, 3, 2, 1), nn.Linear(4, 4)

        def forward(self, a, b):
            return self.head(self.features(a).relu().mean((2, 3, 4)) * self.features(b).relu().mean((2, 3, 4)))

    torch.manual_seed(0)
    a, b = torch.rand(1, 3, 4, 8, 8), torch.rand(1, 3, 2, 8, 8)
    found = explainers.integrated_gradients(Clips().eval(), (a, b), 1)
    assert [each.shape for each in found] == [a.shape, b.shape]
    with pytest.raises(BadImages, match="videos"):
        explainers.blur_integrated_gradients(Clips().eval(), (a, b), 1)


# `explain`


def test_explain_returns_one_explanation_for_each_input():
    net, inputs = fusion(), images(6, 4)
    for name in ("integrated_gradients", "occlusion"):
        found = explain(name, net, inputs, CLASSES)
        maps = METHODS[name](net, inputs, CLASSES)
        for own, part, given in zip(found, maps, inputs, strict=True):
            assert own.target == CLASSES and len(own.findings) == len(own.statistics) == 2
            torch.testing.assert_close(own.raw, part)
            assert torch.equal(own.images, given) and own.map.shape[1:] == given.shape[2:]
            torch.testing.assert_close(own.scores, net(*inputs).detach())


def test_an_input_without_influence_is_reported():
    class Ignoring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = fusion()

        def forward(self, image, depth):
            return self.net(image, image[:, :1]) + 0 * depth.mean()

    first, second = explain("saliency", Ignoring(), images(), 1)
    assert not second.raw.any() and "flat" in {each.code for each in second.findings[0]}
    assert "flat" not in {each.code for each in first.findings[0]}


# State, modes and ways to run the network


def test_forward_takes_all_inputs():
    net, (image, depth) = fusion(), images(6, 4)
    found = explainers.saliency(net, (depth, image), 1, forward=lambda d, i: net(i, depth=d))
    torch.testing.assert_close(found, explainers.saliency(net, (image, depth), 1)[::-1])


def test_a_network_may_modify_its_inputs():
    class InPlace(Fusion):
        def forward(self, image, depth):
            return super().forward(image.mul_(2), depth.add_(1))

    torch.manual_seed(0)
    net, inputs = InPlace().double().eval(), images(6, 4)
    before = [each.clone() for each in inputs]
    for name in ("saliency", "integrated_gradients", "occlusion", "grad_cam", "lrp"):
        attribute(name, net, inputs)
        assert all(map(torch.equal, inputs, before)), name


@pytest.mark.parametrize("name", ["saliency", "integrated_gradients", "occlusion", "grad_cam"])
def test_an_image_that_is_not_finite_in_one_input_is_left_out(name):
    net, (image, depth) = fusion(), images(6, 4)
    broken = depth.clone()
    broken[0, 0, 1, 1] = torch.nan
    found, expected = attribute(name, net, (image, broken)), attribute(name, net, (image[1:], depth[1:]), [2])
    for part, own in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert part[0].isnan().all()
        torch.testing.assert_close(part[1:], own)
    explained = explain(name, net, (image, broken), CLASSES, **options_of(name))
    for each in explained if isinstance(explained, tuple) else [explained]:
        assert each.target == CLASSES and [f.code for f in each.findings[0]] == ["non_finite"]
        assert each.map[0].isnan().all() and each.map[1].isfinite().all()


@pytest.mark.parametrize(("layer", "channels"), [("image", [1]), ("depth", [2, 3])])
def test_through_a_layer_keeps_the_part_of_its_input(layer, channels):
    net, inputs = fusion(), images(6, 4)
    found = explainers.saliency(net, inputs, 1, through=(layer, channels))
    whole = explainers.saliency(Split(net, (6, 4)), joined(inputs), 1, through=(f"net.{layer}", channels))
    torch.testing.assert_close(found, (whole[:, :3], whole[:, 3:, :6, :4]))


# Errors


def test_an_input_whose_gradient_is_cut_off_is_refused():
    net = fusion()
    net.depth[0].register_forward_pre_hook(lambda module, inputs: inputs[0].detach())
    for name in ("saliency", "integrated_gradients"):
        with pytest.raises(UnsupportedModel, match="depends on input 1"):
            attribute(name, net, images())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "empty tuple"),
        ((torch.rand(2, 3, 8, 8), torch.rand(1, 1, 8, 8)), "2 and 1 images"),
        ((torch.rand(2, 3, 8, 8), torch.rand(2, 1, 8)), r"Input 1 of 2: images has shape \(2, 1, 8\)"),
        ((torch.rand(2, 3, 8, 8), [1.0]), "Input 1 of 2: images is a list"),
        ((torch.rand(2, 3, 8, 8), torch.full((2, 1, 8, 8), torch.nan)), "Input 1 of 2: images contains nan"),
        ((torch.rand(2, 3, 8, 8), torch.rand(2, 1, 8, 8).long()), "Input 1 of 2: images is torch.int64"),
        ((torch.rand(2, 3, 8, 8), torch.rand(2, 1, 8, 8).double()), "float64"),
        ((torch.rand(2, 3, 8, 8),), "does not take 1 inputs: missing a required argument: 'depth'"),
        ((torch.rand(2, 3, 8, 8),) * 3, "does not take 3 inputs"),
    ],
)
def test_wrong_inputs_are_refused(inputs, message):
    net = fusion().float()
    for call in (explainers.saliency, explainers.grad_cam, lambda *given: explain("occlusion", *given)):
        with pytest.raises(ValueError, match=message):
            call(net, inputs, 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("integrated_gradients", {"baseline": (0.0,)}, "1 values for 2 inputs"),
        ("integrated_gradients", {"baseline": ("noise", 0.0)}, "only for all inputs together"),
        ("integrated_gradients", {"baseline": torch.zeros(3, 1, 1)}, "does not broadcast"),
        ("gradient_shap", {"baselines": (torch.rand(3, 3, 12, 8), torch.rand(2, 1, 6, 4))}, "3 and 2 baselines"),
        ("deep_lift_shap", {"baseline": ("zeros", "mean")}, "tuple with a tensor of B baselines"),
        ("lrp", {"low": (-1.0, 0.0)}, "must be a number or None"),
        ("saliency", {"forward": lambda image: image}, "forward= does not take 2 inputs"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(BadOption, match=message):
        METHODS[name](fusion(), images(6, 4), 1, **options)
