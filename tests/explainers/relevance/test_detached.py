"""If no gradient can flow, gradient methods name those that work: quantized networks, detached values.

A map of zeros would mean that no input matters. It is only correct if the score does not depend on the input.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import get_default_qconfig_mapping, quantize_dynamic
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from explainers import METHODS, UnsupportedModel, explain, grad_cam, grad_cam_sweep, occlusion, saliency
from tests.support.calls import call
from tests.support.nets import random_images, settle
from tests.support.oracles.attention import two_blocks, wide_images
from tests.support.oracles.features import through

pytestmark = pytest.mark.sample

X = random_images(2, 3, 32, 32).float()
GRADIENTS = [name for name in METHODS if METHODS[name].gradients]
NONE = [name for name in METHODS if not METHODS[name].gradients and name != "attention_heads"]


class Small(nn.Module):
    """Two convolutions and a classifier, which can be quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.stage = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU())
        self.start, self.head = nn.Identity(), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage(self.stem(self.start(x))).mean((2, 3)))


def floating() -> nn.Module:
    return settle(Small().float()).float()


def quantized(kind: str) -> nn.Module:
    engines = torch.backends.quantized.supported_engines
    torch.backends.quantized.engine = next(each for each in ("x86", "fbgemm", "onednn", "qnnpack") if each in engines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "dynamic":
            return quantize_dynamic(floating(), {nn.Linear})
        net = prepare_fx(floating(), get_default_qconfig_mapping(torch.backends.quantized.engine), (X,))
        net(X)
        return convert_fx(net)


KINDS = ["dynamic", "graph"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_methods_refuse_a_quantized_network_and_name_others(kind):
    net = quantized(kind)
    for name in GRADIENTS:
        assert "quantized" in METHODS[name].applies(net), name
        with pytest.raises(UnsupportedModel, match=r"quantized \(torch\..*occlusion, rise"):
            call(name, net, X, 1)
    with pytest.raises(UnsupportedModel, match="quantized"):
        grad_cam_sweep(net, X, 1)
    with pytest.raises(UnsupportedModel, match="quantized"):
        explain("saliency", net, X)


@pytest.mark.parametrize("name", NONE)
@pytest.mark.parametrize("kind", KINDS)
def test_the_others_explain_it(name, kind):
    net = quantized(kind)

    assert METHODS[name].applies(net) is None or name == "d_rise"
    found = call(name, net, X, 1)

    assert found.isfinite().all() and found.any() and not found.is_quantized


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_a_quantized_network(kind):
    """By hand: values in floating point, and each channel's effect with the layer's own scale and zero point."""
    net, x, layer = quantized(kind), X[:1], "stage.0" if kind == "graph" else "stage"
    stage = net.get_submodule(layer)

    def without(k: int) -> Tensor:
        def zero(output: Tensor) -> Tensor:
            changed = output.dequantize().clone()
            changed[:, k] = 0
            if not output.is_quantized:
                return changed
            return torch.quantize_per_tensor(changed, output.q_scale(), output.q_zero_point(), output.dtype)

        return through(net, stage, x, zero)[1][0, 1]

    values, scores = through(net, stage, x, torch.clone)
    torch.testing.assert_close(call("feature_maps", net, x, layer=layer), values.dequantize())
    expected = torch.stack([scores[0, 1] - without(k) for k in range(8)])[None]
    assert expected.any()
    # Dynamic quantization takes the range of a whole batch, and channels run as one.
    rounding = 0.01 if kind == "dynamic" else 1e-6
    torch.testing.assert_close(call("channel_effects", net, x, 1, layer=layer), expected, rtol=1e-5, atol=rounding)


class Frozen(Small):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.stage(self.stem(x))
        return self.head(features.mean((2, 3)))


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class ByNumpy(Small):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(super().forward(x).detach().numpy() * 2)


@pytest.mark.parametrize("kind", [Frozen, ByNumpy])
@pytest.mark.parametrize("name", [n for n in GRADIENTS if METHODS[n].family in ("cam", "gradient", "perturbation")])
def test_a_network_that_cuts_its_graph_is_refused(name, kind):
    net = settle(kind().double())

    with pytest.raises(UnsupportedModel, match="depends on .* leaves the autograd graph .* occlusion, rise"):
        call(name, net, X.double(), 1)


class Inference(Small):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize("name", ["saliency", "lrp", "deep_lift", "full_grad"])
def test_a_forward_pass_in_inference_mode_is_refused(name):
    with pytest.raises(UnsupportedModel, match=r"inference_mode.* occlusion"):
        call(name, settle(Inference().double()), X.double(), 1)
    assert call("occlusion", settle(Inference().double()), X.double(), 1).isfinite().all()


def test_attention_cut_off_is_refused():
    net = two_blocks()
    net.head = nn.Sequential(net.head, Detached())
    for name in ("attention_rollout", "transformer_attribution", "le_grad"):
        with pytest.raises(UnsupportedModel, match="leaves the autograd graph"):
            call(name, net, wide_images(), 1)


def test_zero_is_correct_if_the_score_does_not_depend_on_the_layer():
    """A layer that no score reads."""

    class Aside(Small):
        def forward(self, x: Tensor) -> Tensor:
            self.stage(self.stem(x))
            return self.head(self.stem(x).mean((2, 3)))

    assert not grad_cam(settle(Aside().double()), X.double(), 1, layer="stage").any()


def test_a_layer_after_the_cut_is_explained():
    """Only the layers before it have no gradient."""

    class Half(Small):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.stem(x)
            return self.head(self.stage(x).mean((2, 3)))

    net, whole, x = settle(Half().double()), settle(Small().double()), X.double()
    torch.testing.assert_close(grad_cam(net, x, 1, layer="stage"), grad_cam(whole, x, 1, layer="stage"))
    with pytest.raises(UnsupportedModel, match="depends on layer 'stem'"):
        grad_cam(net, x, 1, layer="stem")
    with pytest.raises(UnsupportedModel, match="depends on the images"):
        saliency(net, x, 1)
    assert occlusion(net, x, 1, window=8, stride=8).any()
