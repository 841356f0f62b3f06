"""Networks with several images as input: one tensor that the network splits, sums, errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import explainers
from explainers import METHODS, BadImages, BadOption, UnsupportedModel, explain
from explainers.perturbation.baselines import baseline_of
from tests.support.calls import call, small
from tests.support.nets import Written, rel

TOGETHER = [name for name, each in METHODS.items() if each.together]
CLASSES = [1, 2]
ONE_OF_EACH_KIND = ("saliency", "integrated_gradients", "smooth_grad", "occlusion", "grad_cam")


def branch(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 6, 3, 1, 1), nn.ReLU())


class Fusion(nn.Module):
    """An image and a second one of any size; the branches multiply, so that neither can be explained alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.depth, self.head = branch(3), branch(1), nn.Linear(6, 4)
        self.double().eval()

    def forward(self, image, depth):
        return self.head(self.image(image).mean((2, 3)) * 3 * self.depth(depth).mean((2, 3)))


def split(net: nn.Module, rows: int, columns: int) -> nn.Module:
    """The same network for one tensor: the second image is in the last channel, at the top left."""

    def forward(self, both):
        return self.net(both[:, :3].contiguous(), both[:, 3:, :rows, :columns].contiguous())

    return Written(forward, net=net).eval()


class InPlace(Fusion):
    def forward(self, image, depth):
        return super().forward(image.mul_(2), depth.add_(1))


def images(rows: int = 6, columns: int = 4) -> tuple[Tensor, Tensor]:
    """Two images and two of another size, with the same smallest and largest value, so that noise has one scale."""
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 3, 12, 8), (2, 1, rows, columns)
    image, depth = (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1 for shape in shapes)
    for each in (image, depth):
        each[:, 0, 0, 0], each[:, 0, 0, 1] = -1, 1
    return image, depth


def joined(image: Tensor, depth: Tensor) -> Tensor:
    """Both inputs as one tensor for `split`."""
    padding = (0, image.shape[3] - depth.shape[3], 0, image.shape[2] - depth.shape[2])
    return torch.cat([image, functional.pad(depth, padding)], 1)


@pytest.mark.sample
@pytest.mark.parametrize("name", TOGETHER)
def test_the_parts_are_those_of_one_tensor(name):
    """An input of another size is a part of a padded tensor, to which random methods add other noise."""
    net = Fusion()
    for rows, columns in ((12, 8),) if "seed" in METHODS[name].options else ((12, 8), (6, 4)):
        inputs = images(rows, columns)
        expected = call(name, split(net, rows, columns), joined(*inputs), CLASSES)
        found = call(name, net, inputs, CLASSES)
        for own, part in zip(found, (expected[:, :3], expected[:, 3:, :rows, :columns]), strict=True):
            assert rel(own, part) < 1e-9


def test_through_a_layer_keeps_the_part_of_its_input():
    net, inputs = Fusion(), images()
    for layer, channels in (("image", [1]), ("depth", [2, 3])):
        found = explainers.saliency(net, inputs, 1, through=(layer, channels))
        whole = explainers.saliency(split(net, 6, 4), joined(*inputs), 1, through=(f"net.{layer}", channels))
        torch.testing.assert_close(found, (whole[:, :3], whole[:, 3:, :6, :4]))


@pytest.mark.parametrize("name", ["integrated_gradients", "deep_lift", "guided_integrated_gradients"])
def test_the_sum_over_all_inputs_is_the_rise_of_the_score_from_the_baseline_of_each(name):
    net, inputs = Fusion(), images()
    for baseline in (None, "mean", "blur", (0.5, -inputs[1])) if name == "integrated_gradients" else (None,):
        options = {"steps": 200 if isinstance(baseline, str) else 1000} if "steps" in METHODS[name].options else {}
        found = METHODS[name](net, inputs, CLASSES, **options, **({"baseline": baseline} if baseline else {}))
        if isinstance(baseline, tuple):
            starts = [torch.zeros_like(each) + start for each, start in zip(inputs, baseline, strict=True)]
        else:
            starts = [torch.cat([baseline_of(n, baseline or 0.0).expand_as(n) for n in x.split(1)]) for x in inputs]
        rises = (net(*inputs) - net(*starts)).detach()[[0, 1], CLASSES]
        total, rtol = sum(each.flatten(1).sum(1) for each in found), 1e-2 if baseline else 5e-3
        torch.testing.assert_close(total, rises, rtol=rtol, atol=1e-9)


def test_noise_has_the_scale_of_each_input():
    """An input in units of a hundredth gets a hundredth of the noise, so that units do not matter."""
    net, (image, depth) = Fusion(), images()
    expected = explainers.smooth_grad(net, (image, depth), 1, samples=4)
    found = explainers.smooth_grad(net, (image, depth / 100), 1, samples=4, forward=lambda a, b: net(a, 100 * b))
    torch.testing.assert_close(found, (expected[0], 100 * expected[1]), rtol=1e-6, atol=1e-12)


def test_what_is_known_about_one_function_is_not_assumed_of_another():
    net, inputs = Fusion(), images()
    for mixes in (False, True):
        function = lambda a, b, mixes=mixes: net(a, b) - 0.5 * mixes * net(a, b).mean(0)  # noqa: E731
        for found in explain("saliency", net, inputs, 1, forward=function):
            assert [finding.code for finding in found.findings[0]] == ["rows_depend"] * mixes


def parts(found):
    """The explanations or maps of all inputs, or that of a layer."""
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_each_image_of_a_batch_is_as_alone_also_if_another_one_is_not_finite(name):
    net, inputs = Fusion(), images()
    broken = inputs[0], inputs[1].clone()
    broken[1][0, 0, 1, 1] = torch.nan
    whole, rest, explained = (
        parts(given)
        for given in (
            call(name, net, inputs, CLASSES),
            call(name, net, broken, CLASSES),
            explain(name, net, broken, CLASSES, **small(name)),
        )
    )
    alone = [parts(call(name, net, tuple(e[n : n + 1] for e in inputs), CLASSES[n])) for n in range(2)]
    for part, other, own, *singles in zip(whole, rest, explained, *alone, strict=True):
        torch.testing.assert_close(part, torch.cat(singles), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other[1], part[1])
        assert other[0].isnan().all() and own.map[0].isnan().all() and own.map[1].isfinite().all()
        assert own.target == CLASSES and [finding.code for finding in own.findings[0]] == ["non_finite"]


def test_layers_of_all_inputs_are_listed_with_their_grids_and_explained_once():
    net, inputs = Fusion(), images()
    grids = {layer.name: layer.grid for layer in explainers.list_layers(net, inputs, spatial=True)}
    assert grids["image"] == (6, 4) and grids["depth"] == (3, 2)
    assert explainers.default_layer(net, inputs) == explain("grad_cam", net, inputs, 1).layer == "image"
    found = explain("grad_cam", net, inputs, 1, layer="depth")
    assert torch.equal(found.images, inputs[1]) and found.layer == "depth"
    alone = explainers.grad_cam(net, inputs[1], 1, layer="depth", forward=lambda depth: net(inputs[0], depth))
    torch.testing.assert_close(found.map, alone)
    assert explainers.grad_cam(net, inputs, 1, layer="image").shape == (2, 6, 4)


def test_explain_returns_one_explanation_for_each_input_and_reports_one_without_influence():
    net, inputs = Fusion(), images()
    for name in ("integrated_gradients", "occlusion"):
        maps = METHODS[name](net, inputs, CLASSES)
        for own, part, given in zip(explain(name, net, inputs, CLASSES), maps, inputs, strict=True):
            assert own.target == CLASSES and len(own.findings) == len(own.statistics) == 2
            torch.testing.assert_close((own.raw, own.scores), (part, net(*inputs).detach()))
            assert torch.equal(own.images, given) and own.map.shape[1:] == given.shape[2:]

    net.depth[-1].register_forward_hook(lambda module, inputs, output: output * 0 + 1)
    first, second = ({finding.code for finding in each.findings[0]} for each in explain("saliency", net, inputs, 1))
    assert "flat" in second and "flat" not in first


def test_a_network_may_modify_its_inputs_and_forward_takes_all_of_them():
    net, inputs = InPlace(), images()
    before, plain = [each.clone() for each in inputs], Fusion()
    for name in (*ONE_OF_EACH_KIND, "lrp"):
        found = parts(call(name, net, inputs, CLASSES))
        expected = call(name, plain, inputs, CLASSES, forward=lambda image, depth: plain(2 * image, depth=depth + 1))
        if name not in ("smooth_grad", "lrp"):
            torch.testing.assert_close(found, parts(expected), msg=name)
        assert all(map(torch.equal, inputs, before)), name


# Errors


def test_an_input_whose_gradient_is_cut_off_is_refused():
    net = Fusion()
    net.depth[0].register_forward_pre_hook(lambda module, inputs: inputs[0].detach())
    for name in ("saliency", "integrated_gradients"):
        with pytest.raises(UnsupportedModel, match="depends on input 1"):
            call(name, net, images(12, 8))


IMAGE, VIDEO = torch.rand(2, 3, 8, 8), torch.rand(2, 3, 4, 8, 8)


def test_wrong_inputs_and_options_are_refused():
    for inputs, words in (
        ((), "empty tuple"),
        ((IMAGE, torch.rand(1, 1, 8, 8)), "2 and 1 images"),
        ((IMAGE, torch.rand(2, 1, 8)), r"Input 1 of 2: .*\(2, 1, 8\)"),
        ((IMAGE, [1.0]), "Input 1 of 2: .* list"),
        ((IMAGE, torch.full((2, 1, 8, 8), torch.nan)), "Input 1 of 2: .* nan"),
        ((IMAGE, torch.rand(2, 1, 8, 8).long()), "Input 1 of 2: .* torch.int64"),
        ((IMAGE, torch.rand(2, 1, 8, 8).double()), "float64"),
        ((IMAGE,), "does not take 1 inputs: missing a required argument: 'depth'"),
        ((IMAGE,) * 3, "does not take 3 inputs"),
    ):
        for given in (explainers.saliency, explainers.grad_cam, lambda *all: explain("occlusion", *all)):
            with pytest.raises(ValueError, match=words):
                given(Fusion().float(), inputs, 1)
    with pytest.raises(BadImages, match="videos"):
        explainers.blur_integrated_gradients(Fusion().float(), (VIDEO, VIDEO), 1)
    for name, options, words in (
        ("integrated_gradients", {"baseline": (0.0,)}, "1 values for 2 inputs"),
        ("integrated_gradients", {"baseline": ("noise", 0.0)}, "only for all inputs together"),
        ("integrated_gradients", {"baseline": torch.zeros(3, 1, 1)}, "does not broadcast"),
        ("gradient_shap", {"baselines": (torch.rand(3, 3, 12, 8), torch.rand(2, 1, 6, 4))}, "3 and 2 baselines"),
        ("deep_lift_shap", {"baseline": ("zeros", "mean")}, "tuple with a tensor of B baselines"),
        ("lrp", {"low": (-1.0, 0.0)}, "must be a number or None"),
        ("saliency", {"forward": lambda image: image}, "forward= does not take 2 inputs"),
    ):
        with pytest.raises(BadOption, match=words):
            METHODS[name](Fusion(), images(), 1, **options)
