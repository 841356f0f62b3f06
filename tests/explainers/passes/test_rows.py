"""Networks that combine the rows of a batch, and networks that draw random numbers: each row runs alone.

`test_kinds.py` compares the maps of all such networks; here is what is special about these passes.
"""

from __future__ import annotations

import random
import threading

import numpy
import pytest
import torch
from torch import nn

import explainers
from explainers import (
    METHODS,
    BadOption,
    ExplainerError,
    UnsupportedModel,
    evaluate,
    explain,
    list_layers,
    saliency,
    smooth,
)
from explainers.nested import concatenate_outputs
from explainers.network.rows.generators import Generators
from tests.support import deciding_nets as nets
from tests.support.kinds import MIXING, NOISE, Applied, unequal
from tests.support.nets import ClassToken, rel


def codes(explanation):
    return [finding.code for finding in explanation.findings[0]]


def states(net=None):
    return Generators(net or nn.Identity(), torch.device("cpu")).states()


def test_every_global_generator_is_fixed_and_restored():
    images = unequal(2)
    for kind, noise in NOISE.items():
        net, before = Applied(noise), states()
        maps = [explain("saliency", net, images, 1) for _ in range(2)]
        list_layers(net, images)
        assert torch.equal(maps[0].map, maps[1].map) and codes(maps[0]) == ["stochastic"], kind
        assert torch.equal(maps[0].raw, METHODS["saliency"].function(net, images, 1)), kind
        assert states() == before, kind


@pytest.mark.parametrize("generator", [torch.Generator, random.Random, lambda: numpy.random.default_rng(0)])
def test_a_generator_of_a_module_is_fixed_and_restored(generator):
    net = Applied(lambda x: x + draw(net.own))
    net.own = generator()

    def draw(own):
        return torch.randn((), generator=own) if isinstance(own, torch.Generator) else own.random()

    before = states(net)
    first, second = (explain("saliency", net, unequal(2), 1) for _ in range(2))

    assert torch.equal(first.map, second.map) and "stochastic" in codes(first)
    assert states(net) == before


def test_noise_that_no_seed_fixes_is_reported():
    hidden = torch.Generator().manual_seed(1)
    net = Applied(lambda x: x + torch.randn(x.shape, generator=hidden))

    (finding,) = [f for f in explain("saliency", net, unequal(1), 1).findings[0] if f.code == "stochastic"]

    assert not finding.facts["is_repeatable"] and "not reproducible" in finding.sentence


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_only_networks_that_mix_are_reported_in_any_dtype(dtype):
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for net in (nets.Conv(), norm.train(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.Flatten())):
        e = explain("saliency", net.to(dtype), unequal().to(dtype), 1)
        assert not {"rows_depend", "stochastic"} & set(codes(e))
    assert "rows_depend" in codes(explain("saliency", Applied(MIXING["maximum"]).to(dtype), unequal(2).to(dtype), 1))


def test_batch_norm_without_statistics_and_dynamic_quantization_are_found():
    norm = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU(), nn.Flatten())
    quantized = torch.ao.quantization.quantize_dynamic(nets.Conv(), {nn.Linear}, dtype=torch.qint8)
    images = unequal(2)
    for net in (norm.eval(), quantized):
        e = explain("occlusion", net, images, 1, window=6, stride=6)
        alone = [explain("occlusion", net, image, 1, window=6, stride=6).map for image in images.split(1)]
        assert "rows_depend" in codes(e) and rel(e.map, torch.cat(alone)) < 1e-5


def test_a_changed_attribute_is_checked_again():
    net, images = Applied(lambda x: x + net.scale * torch.randn_like(x) if net.scale else x), unequal(2)
    net.scale = 0.0
    assert codes(explain("saliency", net, images, 1)) == []

    net.scale = 0.5

    assert "stochastic" in codes(explain("saliency", net, images, 1))


@pytest.mark.parametrize("through", [None, ("second", [0, 2])])
def test_targets_and_restricted_gradients_of_combined_rows(through):
    net, images = Applied(MIXING["mean"]), unequal(2)
    for target in (None, explainers.unit("second", 2, "max"), explainers.Probability([1, 2])):
        if through and isinstance(target, explainers.targets.Unit):
            continue
        both = explain("saliency", net, images, target, through=through)
        each = [target if not isinstance(target, explainers.Probability) else target.rows([n]) for n in range(2)]
        alone = [explain("saliency", net, images[n : n + 1], each[n], through=through).map for n in range(2)]
        assert rel(both.map, torch.cat(alone)) < 1e-6


@pytest.mark.parametrize("function", [MIXING["mean"], NOISE["dropout"]])
def test_attention_is_recorded_row_by_row(function):
    class Vit(ClassToken):
        def forward(self, x):
            return super().forward(function(x))

    torch.manual_seed(0)
    net = Vit(grid=(2, 2)).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for name in ("attention_rollout", "transformer_attribution", "le_grad", "attention_heads"):
        both, again = (explain(name, net, images, [1, 2]).map for _ in range(2))

        alone = [explain(name, net, images[n : n + 1], n + 1).map for n in range(2)]
        assert rel(both, torch.cat(alone)) < 1e-5 and torch.equal(both, again), name


@pytest.mark.parametrize("function", [MIXING["mean"], NOISE["dropout"]])
def test_metrics_and_smoothing_run_rows_alone(function):
    net, images = Applied(function), unequal(2)
    before, chosen = states(), {"metrics": ("deletion", "sensitivity_max"), "steps": 3}
    smoothed = smooth("grad_cam", sigma=0.1, samples=2)

    both, mean = evaluate(net, images, "grad_cam", target=[1, 2], **chosen), smoothed(net, images, [1, 2]).mean

    for n, image in enumerate(images.split(1)):
        one = evaluate(net, image, "grad_cam", target=[n + 1], **chosen)
        for name, values in one.values.items():
            torch.testing.assert_close(both.values[name][n : n + 1], values, rtol=1e-4, atol=1e-6, equal_nan=True)
        assert rel(mean[n : n + 1], smoothed(net, image, n + 1).mean) < 1e-5
    assert [finding.code in ("rows_depend", "stochastic") for finding in both.findings] == [True]
    assert states() == before


def test_a_function_as_forward_is_run_row_by_row_too():
    for function in (MIXING["mean"], NOISE["dropout"]):
        net, images = Applied(function), unequal()
        forward = {"forward": lambda images, net=net: net(images)}
        both = explain("occlusion", net, images, 1, window=6, stride=6, **forward)
        alone = [explain("occlusion", net, image, 1, window=6, stride=6, **forward).map for image in images.split(1)]
        assert rel(both.map, torch.cat(alone)) < 1e-6


def test_a_network_that_needs_its_batch_and_combines_rows_is_refused():
    def pairs(x):
        assert len(x) == 2, "pairs only"
        return x - 0.5 * x.mean(0)

    with pytest.raises(UnsupportedModel, match="combines the images of a batch.*single image"):
        saliency(Applied(pairs), unequal(2), 1)


def test_threads_explain_a_stochastic_network_at_once():
    net, images, found = Applied(NOISE["dropout"]), unequal(2), []
    expected, before = saliency(net, images, 1), states()

    threads = [threading.Thread(target=lambda: found.append(saliency(net, images, 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4 and all(torch.equal(map, expected) for map in found) and states() == before


def test_the_generators_are_restored_after_an_error():
    def broken(x):
        torch.rand(3)
        if broken.armed:
            raise RuntimeError("broken")
        return x

    broken.armed = False
    net, images = Applied(broken), unequal(2)
    saliency(net, images, 1)
    broken.armed, before = True, states()

    with pytest.raises(RuntimeError, match="broken"):
        saliency(net, images, 1)
    with pytest.raises(BadOption):
        METHODS["rise"].function(net, images, 1, samples=0)
    assert states() == before


def test_outputs_of_single_rows_are_joined():
    boxes = [[{"scores": torch.rand(n)}] for n in (2, 5)]
    named = [{"logits": torch.zeros(1, 3), "loss": torch.tensor(float(n)), "note": "x"} for n in range(2)]

    assert [len(each["scores"]) for each in concatenate_outputs(boxes)] == [2, 5]
    joined = concatenate_outputs(named)
    assert joined["logits"].shape == (2, 3) and joined["loss"].tolist() == [0.0, 1.0] and joined["note"] == "x"


def test_equal_rows_with_different_outputs_are_found():
    """The network changes the first row of a batch, where the features of the first image are 0."""
    net = Applied(lambda x: x.clone().put_(torch.arange(64), 3 * x.flatten()[:64]), inside=True)
    images = nets.lights(3)
    images[0] = -10 * net.first.weight[0].detach().repeat(1, 8, 8)
    assert not net.first(images)[0, 0].relu().any()

    found = explain("saliency", net, images, 1)

    assert "rows_depend" in codes(found)
    torch.testing.assert_close(found.raw, torch.cat([saliency(net, image, 1) for image in images.split(1)]))


class Parts(nets.Conv):
    """Runs eight images at a time, more than in the check of rows."""

    def forward(self, x):
        return torch.cat([super(Parts, self).forward(part) for part in x.split(8)])


@pytest.mark.parametrize("layer", [None, "relu#0"])
def test_a_layer_that_runs_on_parts_of_the_batch_is_refused(layer):
    """Without the refusal, the maps of the first eight images are the result for ten."""
    for name in ("grad_cam", "eigen_cam", "feature_maps", "score_cam", "layer_integrated_gradients"):
        with pytest.raises(ExplainerError, match="8 rows for 10 images.*fewer images|runs 2 times"):
            METHODS[name](Parts(), torch.rand(10, 3, 32, 32), 1, layer=layer)
        assert len(METHODS[name](Parts(), torch.rand(8, 3, 32, 32), 1)) == 8
