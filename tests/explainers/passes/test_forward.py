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
from tests.support.nets import random_images, residual

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


def settled(net: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return net.eval()


def with_meta(model, images):
    return model(pixel_values=images, meta=META)


def with_dict(model, images):
    return model({"image": images})


FEW = {"samples": 8, "steps": 4, "window": 6, "stride": 6, "scales": 2, "cells": 3, "channels": 4}


def options_of(name: str) -> dict:
    options = METHODS[name].options
    few = {key: value for key, value in FEW.items() if key in options and options[key].kind == "int"}
    if name in ("xrai", "channel_effects"):
        few.pop("channels", None)
    return few


def result(name, model, images, target=1, **options):
    """The method's result, or the message of its error."""
    try:
        return METHODS[name](model, images, target, **options_of(name), **options)
    except explainers.ExplainerError as refused:
        return type(refused)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_a_handwritten_module(name, count):
    images = random_images(count)
    for net, run in ((settled(TwoInputs()), with_meta), (FromDict().double().eval(), with_dict)):
        layer = {"layer": "conv2" if run is with_meta else "net.layer2"} if METHODS[name].takes_layer else {}
        by_hand = {"layer": f"model.{layer['layer']}"} if layer else {}

        found = result(name, net, images, forward=partial(run, net), **layer)

        expected = result(name, ByHand(net, run), images, **by_hand)
        if isinstance(expected, type):
            assert found is expected
        else:
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
            assert METHODS[name].family == "control" or found.abs().sum() > 0


@pytest.mark.parametrize("given", [{}, {"batch_size": 5}])
@pytest.mark.parametrize("name", METHODS)
def test_one_image_and_a_function_with_a_fixed_batch_size(name, given):
    """If the second input does not scale with the batch, variants run one by one with the same result."""
    given = given if "batch_size" in inspect.signature(METHODS[name].function).parameters else {}
    net, images = settled(Joined()), random_images(1)
    layer = {"layer": "conv2"} if METHODS[name].takes_layer else {}
    by_hand = {"layer": "model.conv2"} if layer else {}

    found = result(name, net, images, forward=lambda images: with_meta(net, images), **layer, **given)

    wide = ByHand(net, lambda model, images: model(pixel_values=images, meta=META.expand(len(images), -1)))
    expected = result(name, wide, images, **by_hand, **given)
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def two_inputs():
    net = settled(TwoInputs())
    return net, lambda images: with_meta(net, images)


def test_explain_and_functions_around_the_methods():
    net, forward = two_inputs()
    oracle, images = ByHand(net, with_meta), random_images(2)
    a = explain("grad_cam", net, images, layer="conv2", forward=forward)
    b = explain("grad_cam", oracle, images, layer="model.conv2")
    torch.testing.assert_close(a.map, b.map)
    torch.testing.assert_close(a.scores, b.scores)
    assert (a.layer, a.target) == ("conv2", b.target)
    assert [[f.code for f in row] for row in a.findings] == [[f.code for f in row] for row in b.findings]
    assert explain("grad_cam", net, images, forward=forward).layer == "act2"
    for of in (grad_cam_sweep, lambda *a, **k: sweep("layer_cam", *a, **k)):
        found, expected = of(net, images, 1, forward=forward), of(oracle, images, 1)
        assert [f"model.{name}" for name in found] == list(expected)
        torch.testing.assert_close(list(found.values()), list(expected.values()))
    parts, expected = full_gradients(net, images, 1, forward=forward), full_gradients(oracle, images, 1)
    torch.testing.assert_close(parts.total(), expected.total())
    torch.testing.assert_close(parts.scores, with_meta(net, images)[:, 1])
    factors = [
        feature_factors(m, images, 1, layer=at, components=2, forward=f).maps
        for m, at, f in ((net, "conv2", forward), (oracle, "model.conv2", None))
    ]
    torch.testing.assert_close(*factors)
    smoothed = [
        smooth("saliency", sigma=0.1, samples=3)(m, images, forward=f).mean for m, f in ((net, forward), (oracle, None))
    ]
    torch.testing.assert_close(*smoothed)


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


def test_layer_profiles_are_cached_per_function():
    net, forward = two_inputs()
    calls = []

    def counted(images):
        calls.append(len(images))
        return forward(images)

    grad_cam(net, random_images(1), 1, layer=None, forward=counted)
    first = len(calls)
    grad_cam(net, random_images(1), 1, layer=None, forward=counted)
    assert len(calls) - first == 1 < first
    side = list_layers(net, random_images(1), forward=net.embedded)
    assert "head" not in [layer.name for layer in side], "another function has its own layers"


def test_targets_and_layers_are_those_of_the_model_itself():
    net, forward = two_inputs()
    oracle, images = ByHand(net, with_meta), random_images(2)
    by_module = grad_cam(net, images, 1, layer=net.conv2, forward=forward)
    torch.testing.assert_close(by_module, grad_cam(oracle, images, 1, layer="model.conv2"))
    for name in ("saliency", "occlusion"):
        found = METHODS[name](net, images, unit("conv2", 1, at="max"), forward=forward, **options_of(name))
        expected = METHODS[name](oracle, images, unit("model.conv2", 1, at="max"), **options_of(name))
        torch.testing.assert_close(found, expected)
    found = saliency(net, images, 1, through=("conv2", [1, 3]), forward=forward)
    torch.testing.assert_close(found, saliency(oracle, images, 1, through=("model.conv2", [1, 3])))
    towards = Similarity(torch.ones(8))
    found = saliency(net, images, towards, forward=net.embedded)
    torch.testing.assert_close(found, saliency(ByHand(net, TwoInputs.embedded), images, towards))


def test_one_row_per_image_works_without_variants_and_raises_with_variants():
    """Variants of one image would be combined with the numbers of another, without an error if both have two rows."""
    net, images, rows = settled(Joined()), random_images(2), torch.cat([META, -2 * META])

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


@pytest.mark.parametrize("forward", [3, "model", nn.Linear, [lambda images: images]])
def test_a_forward_that_is_not_a_function_raises(forward):
    net, images = two_inputs()[0], random_images(1)
    for call in (saliency, grad_cam_sweep, full_gradients, lambda *a, **k: explain("saliency", *a, **k)):
        with pytest.raises(BadOption, match=r"forward=.*lambda images: model\(images, meta\)"):
            call(net, images, 1, forward=forward)
    with pytest.raises(TypeError, match="model is a str"):
        saliency("resnet18", images, 1, forward=lambda images: images)


def test_a_function_that_runs_another_network_raises():
    net, other = settled(TwoInputs()), settled(TwoInputs())
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
    whole = torch.compile(settled(TwoInputs()))
    with pytest.raises(UnsupportedModel, match="compiled"):
        saliency(whole, random_images(1), 1, forward=lambda images: with_meta(whole, images))
    with pytest.raises(BadOption, match="check_explainer copies"):
        explainers.check_explainer(saliency, model=settled(TwoInputs()), forward=forward)
    with torch.inference_mode():
        made = settled(TwoInputs())
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


def test_wrapped_and_traced_models():
    net, forward = two_inputs()
    images, expected = random_images(2), grad_cam(net, random_images(2), 1, layer="conv2", forward=forward)
    wrapped = nn.DataParallel(net)
    if not torch.cuda.is_available():
        found = grad_cam(wrapped, images, 1, layer="conv2", forward=lambda x: wrapped(pixel_values=x, meta=META))
        torch.testing.assert_close(found, expected)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, images, meta):
            return self.net(pixel_values=images, meta=meta)

    traced = torch.jit.trace(Plain().eval(), (images[:1], META), check_trace=False)
    for name in ("saliency", "occlusion"):
        found = METHODS[name](traced, images[:1], 1, forward=lambda x: traced(x, META), **options_of(name))
        torch.testing.assert_close(found, METHODS[name](net, images[:1], 1, forward=forward, **options_of(name)))
    for name in ("grad_cam", "guided_backprop", "lrp", "deep_lift", "attention_rollout", "full_grad"):
        with pytest.raises(explainers.ExplainerError, match="traced"):
            METHODS[name](traced, images[:1], 1, forward=lambda x: traced(x, META))


def test_the_model_is_unchanged_and_not_kept_alive():
    net, forward = two_inputs()
    before = {name: (id(module), {**vars(module)}.keys()) for name, module in net.named_modules()}
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]
    explain("grad_cam", net, random_images(1), forward=forward)
    occlusion(net, random_images(1), 1, forward=forward, window=6, stride=6)
    assert before == {name: (id(module), {**vars(module)}.keys()) for name, module in net.named_modules()}
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]
    held = weakref.ref(net)
    del net, forward
    gc.collect()
    assert held() is None


def test_hugging_face_models_by_keyword_and_by_method():
    transformers = pytest.importorskip("transformers")
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 8, "projection_dim": 12}
    torch.manual_seed(0)
    clip = transformers.CLIPModel(transformers.CLIPConfig(vision_config=vision, projection_dim=12)).eval()
    images, words = torch.randn(2, 3, 32, 32), torch.randint(0, 100, (1, 5))
    with torch.no_grad():
        embedding = clip.get_text_features(input_ids=words)
        embedding = embedding if isinstance(embedding, Tensor) else embedding.pooler_output

    towards = saliency(clip, images, Similarity(embedding[0]), forward=clip.get_image_features)
    assert towards.shape == images.shape and towards.any()
    by_logits = grad_cam(
        clip, images, 0, forward=lambda images: {"logits": clip(pixel_values=images, input_ids=words).logits_per_image}
    )
    assert by_logits.shape == (2, 4, 4)
    of_texts = grad_cam(clip, images, 0, forward=lambda images: clip(pixel_values=images, input_ids=words))
    torch.testing.assert_close(of_texts, by_logits)


@pytest.mark.parametrize("name", ["ablation_cam", "score_cam", "smooth_grad"])
def test_no_private_copy_replaces_the_model_that_the_function_runs(name):
    """In float32, many variants run in a fused copy, whose modules the user's function would not run."""
    net, images, meta = settled(TwoInputs()).float(), random_images(1).float(), META.float()
    layer = {"layer": "conv2"} if METHODS[name].takes_layer else {}

    def forward(images):
        return net(pixel_values=images, meta=meta)

    with open_run(wrap_forward(net, forward, images), images, 1, many=True) as run:
        run.scoring.score_inputs()
        assert run.scoring.fast_network() is None
    found = result(name, net, images, forward=forward, **layer)
    oracle = ByHand(net, lambda model, images: model(pixel_values=images, meta=meta)).eval()
    by_hand = {"layer": "model.conv2"} if layer else {}
    torch.testing.assert_close(found, result(name, oracle, images, **by_hand), rtol=1e-3, atol=1e-4)
