"""`forward=`: models with additional inputs, keyword arguments, dicts and custom methods, for every method.

The oracle is a module written by hand that runs the model in the same way.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import (
    METHODS,
    BadOption,
    Similarity,
    UnsupportedModel,
    default_layer,
    explain,
    feature_factors,
    full_gradients,
    grad_cam,
    grad_cam_sweep,
    list_layers,
    occlusion,
    saliency,
    smooth,
    sweep,
    unit,
)
from explainers.network.forward_wrapper import wrap_forward
from explainers.passes.run import open_run
from tests.support.calls import small
from tests.support.nets import random_images, residual, settle
from tests.support.traces import nothing_left

pytestmark = pytest.mark.sample

META = torch.tensor([[0.4, -0.7]], dtype=torch.float64)


class TwoInputs(nn.Module):
    """Images and numbers, both keyword-only; both are required."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU()
        self.gate, self.head = nn.Linear(2, 8), nn.Linear(8, 5)

    def forward(self, *, pixel_values: Tensor, meta: Tensor) -> Tensor:
        maps = self.act2(self.conv2(self.act1(self.conv1(pixel_values))))
        return self.head(maps.mean((2, 3)) + self.gate(meta))

    def embedded(self, images: Tensor) -> Tensor:
        return self.act2(self.conv2(self.act1(self.conv1(images)))).mean((2, 3))


class Joined(TwoInputs):
    """The numbers are concatenated to the features, so a batch needs one row of them per image."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 5)

    def forward(self, *, pixel_values: Tensor, meta: Tensor) -> Tensor:
        maps = self.act2(self.conv2(self.act1(self.conv1(pixel_values))))
        return self.head(torch.cat([maps.mean((2, 3)), meta], 1))


class FromDict(nn.Module):
    """Takes a dict and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = residual()

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": self.net(batch["image"])}


class ByHand(nn.Module):
    """The oracle: an ordinary module around the model."""

    def __init__(self, model, run) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, images):
        return self.run(self.model, images)


def double(net: nn.Module) -> nn.Module:
    return settle(net.double())


def with_meta(model, images):
    return model(pixel_values=images, meta=META)


def with_dict(model, images):
    return model({"image": images})


def result(name, model, images, target=1, **options):
    """The method's result, or the message of its error."""
    try:
        return METHODS[name](model, images, target, **small(name), **options)
    except explainers.ExplainerError as refused:
        return type(refused)


def assert_same(found, expected):
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_a_handwritten_module(name):
    images = random_images(2)
    for net, run, layer in ((double(TwoInputs()), with_meta, "conv2"), (FromDict().eval(), with_dict, "net.layer2")):
        given, by_hand = ({"layer": layer}, {"layer": f"model.{layer}"}) if METHODS[name].takes_layer else ({}, {})

        found = result(name, net, images, forward=partial(run, net), **given)

        assert_same(found, result(name, ByHand(net, run), images, **by_hand))
        assert isinstance(found, type) or METHODS[name].family == "control" or found.abs().sum() > 0


@pytest.mark.parametrize("name", METHODS)
def test_one_image_and_a_function_with_a_fixed_batch_size(name):
    """If the second input does not scale with the batch, variants run one by one with the same result."""
    net, images = double(Joined()), random_images(1)
    layer, by_hand = ({"layer": "conv2"}, {"layer": "model.conv2"}) if METHODS[name].takes_layer else ({}, {})
    wide = ByHand(net, lambda model, images: model(pixel_values=images, meta=META.expand(len(images), -1)))
    sizes = [{}, {"batch_size": 5}] if "batch_size" in inspect.signature(METHODS[name].function).parameters else [{}]
    for size in sizes:
        found = result(name, net, images, forward=lambda images: with_meta(net, images), **layer, **size)
        assert_same(found, result(name, wide, images, **by_hand, **size))


def two_inputs():
    net = double(TwoInputs())
    return net, lambda images: with_meta(net, images)


def test_explain_and_functions_around_the_methods():
    net, forward = two_inputs()
    oracle, images = ByHand(net, with_meta), random_images(2)
    a = explain("grad_cam", net, images, layer="conv2", forward=forward)
    b = explain("grad_cam", oracle, images, layer="model.conv2")
    torch.testing.assert_close((a.map, a.scores), (b.map, b.scores))
    assert (a.layer, a.target) == ("conv2", b.target)
    assert [[f.code for f in row] for row in a.findings] == [[f.code for f in row] for row in b.findings]
    calls = {
        "grad_cam_sweep": lambda *a, **k: [*grad_cam_sweep(*a, 1, **k).values()],
        "sweep": lambda *a, **k: [*sweep("layer_cam", *a, 1, **k).values()],
        "full_gradients": lambda *a, **k: full_gradients(*a, 1, **k).total(),
        "feature_factors": lambda *a, **k: feature_factors(*a, 1, components=2, **k).maps,
        "smooth": lambda *a, **k: smooth("saliency", sigma=0.1, samples=3)(*a, **k).mean,
    }
    for name, call in calls.items():
        found, expected = call(net, images, forward=forward), call(oracle, images)
        torch.testing.assert_close(found, expected, msg=name)


def test_layers_are_listed_and_found():
    net, forward = two_inputs()
    oracle, images = ByHand(net, with_meta), random_images(1)
    found, expected = list_layers(net, images, forward=forward), list_layers(oracle, images)
    assert [f"model.{layer.name}" for layer in found] == [layer.name for layer in expected if layer.name != "model"]
    assert [layer.grid for layer in found] == [layer.grid for layer in expected if layer.name != "model"]
    by_name = {layer.name: layer for layer in list_layers(net, images, spatial=True, forward=forward)}
    assert "head" not in by_name
    gc.collect()
    assert by_name["conv2"].receptive_field((0, 0)) == (0, 0, 3, 3)
    assert default_layer(net, images, forward=forward) == "act2"
    with pytest.raises(TypeError):
        default_layer(net, images)
    side = list_layers(net, images, forward=net.embedded)
    assert "head" not in [layer.name for layer in side], "another function has its own layers"


def test_targets_and_layers_are_those_of_the_model_itself():
    net, forward = two_inputs()
    oracle, images = ByHand(net, with_meta), random_images(2)
    by_module = grad_cam(net, images, 1, layer=net.conv2, forward=forward)
    torch.testing.assert_close(by_module, grad_cam(oracle, images, 1, layer="model.conv2"))
    for name in ("saliency", "occlusion"):
        found = METHODS[name](net, images, unit("conv2", 1, at="max"), forward=forward, **small(name))
        expected = METHODS[name](oracle, images, unit("model.conv2", 1, at="max"), **small(name))
        torch.testing.assert_close(found, expected)
    found = saliency(net, images, 1, through=("conv2", [1, 3]), forward=forward)
    torch.testing.assert_close(found, saliency(oracle, images, 1, through=("model.conv2", [1, 3])))
    towards = Similarity(torch.ones(8))
    found = saliency(net, images, towards, forward=net.embedded)
    torch.testing.assert_close(found, saliency(ByHand(net, TwoInputs.embedded), images, towards))


def test_one_row_per_image_works_without_variants_and_raises_with_variants():
    """Variants of one image would be combined with the numbers of another, without an error if both have two rows."""
    net, images, rows = double(Joined()), random_images(2), torch.cat([META, -2 * META])

    def forward(images):
        return net(pixel_values=images, meta=rows)

    for name, options in (("saliency", {}), ("grad_cam", {"layer": "conv2"}), ("deep_lift", {})):
        found = METHODS[name](net, images, 1, forward=forward, **options)
        for i in range(2):
            alone = METHODS[name](
                net, images[i : i + 1], 1, forward=lambda x, i=i: net(pixel_values=x, meta=rows[i : i + 1]), **options
            )
            torch.testing.assert_close(found[i], alone[0])
    for name, options in (("occlusion", {"batch_size": 2}), ("integrated_gradients", {"batch_size": 2}), ("rise", {})):
        with pytest.raises(UnsupportedModel, match="one row per image.*one at a time"):
            METHODS[name](net, images, 1, forward=forward, **options)
    maps = grad_cam_sweep(net, images, 1, forward=forward)
    torch.testing.assert_close(maps["act2"], grad_cam(net, images, 1, forward=forward))


def test_a_forward_that_is_not_a_function_raises():
    net, images = two_inputs()[0], random_images(1)
    for forward in (3, nn.Linear):
        for call in (saliency, grad_cam_sweep, full_gradients):
            with pytest.raises(BadOption, match=r"forward=.*lambda images: model\(images, meta\)"):
                call(net, images, 1, forward=forward)
    with pytest.raises(TypeError, match="model is a str"):
        saliency("resnet18", images, 1, forward=lambda images: images)


def test_a_function_that_runs_another_network_raises():
    net, other = double(TwoInputs()), double(TwoInputs())
    for name in ("saliency", "occlusion", "grad_cam"):
        with pytest.raises(BadOption, match="does not run any module of the given TwoInputs"):
            METHODS[name](net, random_images(1), 1, forward=lambda images: with_meta(other, images))


def test_models_that_need_a_private_copy_raise():
    net, forward = two_inputs()
    net.act2.train()
    for call in (saliency, lambda *a, **k: explain("occlusion", *a, **k)):
        with pytest.raises(UnsupportedModel, match=r"training mode.*model\.eval\(\)"):
            call(net, random_images(1), 1, forward=forward)
    net.eval()
    net.conv1.compile()
    with pytest.raises(UnsupportedModel, match="compiled"):
        saliency(net, random_images(1), 1, forward=forward)
    whole = torch.compile(double(TwoInputs()))
    with pytest.raises(UnsupportedModel, match="compiled"):
        saliency(whole, random_images(1), 1, forward=lambda images: with_meta(whole, images))
    with pytest.raises(BadOption, match="check_explainer copies"):
        explainers.check_explainer(saliency, model=double(TwoInputs()), forward=forward)
    with torch.inference_mode():
        made = double(TwoInputs())
    with pytest.raises(UnsupportedModel, match="inference"):
        saliency(made, random_images(1), 1, forward=lambda images: with_meta(made, images))


def test_errors_of_the_function_and_of_names_are_reported_unchanged():
    net, forward = two_inputs()
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'meta'"):
        saliency(net, random_images(1), 1, forward=lambda images: net(pixel_values=images))
    with pytest.raises(explainers.LayerNotFound, match="TwoInputs has no layer 'conv3'. Did you mean 'conv2'"):
        grad_cam(net, random_images(1), 1, layer="conv3", forward=forward)
    with pytest.raises(BadOption, match="Did you mean 'forward'.*Available options: forward, through"):
        saliency(net, random_images(1), 1, foward=forward)


def test_traced_models():
    net, forward = two_inputs()
    images = random_images(1)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, images, meta):
            return self.net(pixel_values=images, meta=meta)

    traced = torch.jit.trace(Plain().eval(), (images, META), check_trace=False)
    for name in ("saliency", "occlusion"):
        found = METHODS[name](traced, images, 1, forward=lambda x: traced(x, META), **small(name))
        torch.testing.assert_close(found, METHODS[name](net, images, 1, forward=forward, **small(name)))
    for name in ("grad_cam", "guided_backprop", "lrp", "full_grad"):
        with pytest.raises(explainers.ExplainerError, match="traced"):
            METHODS[name](traced, images, 1, forward=lambda x: traced(x, META))


def test_the_model_is_unchanged_and_not_kept_alive():
    net, forward = two_inputs()
    with nothing_left(net):
        explain("grad_cam", net, random_images(1), forward=forward)
        occlusion(net, random_images(1), 1, forward=forward, window=6, stride=6)
    held = weakref.ref(net)
    del net, forward
    gc.collect()
    assert held() is None


def test_no_private_copy_replaces_the_model_that_the_function_runs():
    """In float32, many variants run in a fused copy, whose modules the user's function would not run."""
    net, images, meta = double(TwoInputs()).float(), random_images(1).float(), META.float()

    def forward(images):
        return net(pixel_values=images, meta=meta)

    with open_run(wrap_forward(net, forward, images), images, 1, many=True) as run:
        run.scoring.score_inputs()
        assert run.scoring.fast_network() is None
    found = result("score_cam", net, images, forward=forward, layer="conv2")
    oracle = ByHand(net, lambda model, images: model(pixel_values=images, meta=meta)).eval()
    torch.testing.assert_close(found, result("score_cam", oracle, images, layer="model.conv2"), rtol=1e-3, atol=1e-4)
