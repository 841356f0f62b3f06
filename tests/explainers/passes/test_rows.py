"""Networks that combine the rows of a batch, and networks that draw random numbers: each row runs alone."""

from __future__ import annotations

import random
import threading

import numpy
import pytest
import torch
import torch.nn.functional as F
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
from explainers.network import behavior
from explainers.network.rows.generators import Generators
from tests.support import deciding_nets as nets
from tests.support.nets import ClassToken, rel

pytestmark = pytest.mark.sample

SMALL = {"samples": 4, "steps": 4, "scales": 2}
MIXING = {
    "maximum": lambda x: x / x.abs().max(),
    "mean": lambda x: x - 0.5 * x.mean(0),
    "statistics": lambda x: (x - x.mean((0, 2, 3), keepdim=True)) / (x.std((0, 2, 3), keepdim=True) + 0.1),
    "earlier rows": lambda x: x.cumsum(0),
    "number of rows": lambda x: x * len(x),
}
NOISE = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "normal": lambda x: x + 0.5 * torch.randn_like(x),
    "python": lambda x: x * random.choice([0.5, 1.0, 2.0]),
    "numpy": lambda x: x + float(numpy.random.rand()),
    "rare": lambda x: 0.5 * x if float(torch.rand(())) < 0.02 else x,
}


class Net(nn.Module):
    """A small network that applies a function to its input, or between its layers."""

    def __init__(self, function=lambda x: x, inside=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.relu = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU()
        self.head, self.inside, self.scale, self.passes = nn.Linear(6, 5), inside, 1.0, []
        self.function = [function]
        self.eval()

    def forward(self, x):
        self.passes.append(len(x))
        x = self.first(x if self.inside else self.function[0](x))
        x = self.second((self.function[0](x) if self.inside else x).relu())
        return self.head(self.relu(x).mean((2, 3)))


def pictures(count=2):
    sizes = torch.tensor([1.0, 4.0, 0.2])[:count].view(-1, 1, 1, 1)
    return torch.randn(count, 3, 12, 16, generator=torch.Generator().manual_seed(5)) * sizes + 0.3


def options(name):
    return {key: value for key, value in SMALL.items() if key in METHODS[name].options}


def codes(explanation):
    return [finding.code for finding in explanation.findings[0]]


def states():
    return Generators(nn.Identity(), torch.device("cpu")).states()


NO_RULE = {"lrp", "attn_lrp", "cp_lrp", "excitation_backprop"}
"""Methods that refuse dropout by name."""


def each_method() -> list[str]:
    found = []
    for name, each in METHODS.items():
        attention = each.needs is not None and each.needs(Net()) is not None
        if not attention and name != "guided_grad_cam":
            found.append(name)
    return found


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", each_method())
def test_images_of_a_network_that_combines_rows_are_explained_alone(name, inside):
    net, images = Net(MIXING["mean"], inside), pictures()

    both = explain(name, net, images, [1, 2], **options(name))
    alone = [explain(name, net, images[n : n + 1], n + 1, **options(name)).map for n in range(2)]

    assert rel(both.map, torch.cat(alone)) < 1e-5 and codes(both).count("rows_depend") == 1


@pytest.mark.parametrize("name", each_method())
def test_stochastic_networks_give_the_same_map_twice_and_for_each_image_alone(name):
    """The same noise in the clean pass and in every variant, whatever the batch; the generators are as before."""
    net, images = Net(NOISE["normal" if name in NO_RULE else "dropout"]), pictures()
    before = states()

    both = explain(name, net, images, [1, 2], **options(name))
    again = METHODS[name].function(net, images, [1, 2], **options(name))
    alone = [explain(name, net, images[n : n + 1], n + 1, **options(name)).map for n in range(2)]

    assert rel(both.map, torch.cat(alone)) < 1e-5 and codes(both).count("stochastic") == 1
    raw = both.raw.relu() if METHODS[name].relu else both.raw
    assert raw.shape == again.shape and torch.equal(raw, again)
    assert states() == before


@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize("name", ["grad_cam", "occlusion", "integrated_gradients", "ablation_cam"])
def test_every_kind_of_mixing_is_found(name, kind):
    net, images = Net(MIXING[kind]), pictures(3)

    e = explain(name, net, images, 1, **options(name))

    alone = [explain(name, net, image[None], 1, **options(name)).map for image in images]
    assert rel(e.map, torch.cat(alone)) < 1e-5 and "rows_depend" in codes(e)


@pytest.mark.parametrize("kind", NOISE)
def test_every_global_generator_is_fixed_and_restored(kind):
    net, images = Net(NOISE[kind]), pictures()
    before = states()

    maps = [explain("saliency", net, images, 1) for _ in range(2)]
    list_layers(net, images)

    assert torch.equal(maps[0].map, maps[1].map) and "stochastic" in codes(maps[0])
    assert states() == before


@pytest.mark.parametrize("generator", [torch.Generator, random.Random, lambda: numpy.random.default_rng(0)])
def test_a_generator_of_a_module_is_fixed_and_restored(generator):
    net = Net(lambda x: x + draw(net.own))
    net.own = generator()

    def draw(own):
        return torch.randn((), generator=own) if isinstance(own, torch.Generator) else own.random()

    before = Generators(net, torch.device("cpu")).states()
    first, second = (explain("saliency", net, pictures(), 1) for _ in range(2))

    assert torch.equal(first.map, second.map) and "stochastic" in codes(first)
    assert Generators(net, torch.device("cpu")).states() == before


def test_noise_that_no_seed_fixes_is_reported():
    hidden = torch.Generator().manual_seed(1)
    net = Net(lambda x: x + torch.randn(x.shape, generator=hidden))

    (finding,) = [f for f in explain("saliency", net, pictures(1), 1).findings[0] if f.code == "stochastic"]

    assert not finding.facts["is_repeatable"] and "not reproducible" in finding.sentence


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ordinary_networks_are_not_reported_in_any_dtype(dtype):
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for net in (Net(), norm.train(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.Flatten())):
        e = explain("saliency", net.to(dtype), pictures(3).to(dtype), 1)
        assert not {"rows_depend", "stochastic"} & set(codes(e))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixing_is_found_in_half_precision(dtype):
    e = explain("saliency", Net(MIXING["maximum"]).to(dtype), pictures().to(dtype), 1)

    assert "rows_depend" in codes(e)


def test_batch_norm_without_statistics_and_dynamic_quantization_are_found():
    norm = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU(), nn.Flatten())
    quantized = torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}, dtype=torch.qint8)
    for net in (norm.eval(), quantized):
        e = explain("occlusion", net, pictures(), 1, window=6, stride=6)
        alone = [explain("occlusion", net, image[None], 1, window=6, stride=6).map for image in pictures()]
        assert "rows_depend" in codes(e) and rel(e.map, torch.cat(alone)) < 1e-5


def test_the_checks_run_once_per_model_and_shape_and_only_if_needed():
    """One image in one pass: only the noise check, once. Several rows: the check of rows too, once for each shape."""
    net, images = Net(), pictures()
    counts = []
    for batch in (images[:1], images[:1], images, images, images[..., :8], images[:1, :, :8]):
        net.passes.clear()
        saliency(net, batch, 1)
        counts.append(net.passes[:-1])

    assert counts == [[1, 1], [], [1, 2, 2, 4], [], [1, 2, 2, 4], []]


def test_a_changed_attribute_is_checked_again_but_a_counter_is_not():
    net = Net(lambda x: x + net.scale * torch.randn_like(x))
    net.scale, images = 0.0, pictures()
    net.function = [lambda x: x + net.scale * torch.randn_like(x) if net.scale else x]
    assert codes(explain("saliency", net, images, 1)) == []

    net.scale = 0.5

    assert "stochastic" in codes(explain("saliency", net, images, 1))
    counting = Net()
    counting.count = 0
    counting.function = [lambda x: setattr(counting, "count", counting.count + 1) or x]
    saliency(counting, images, 1)
    counting.passes.clear()
    saliency(counting, images, 1)
    assert counting.passes == [2]


def test_the_checks_do_not_use_up_the_budget(monkeypatch):
    seen = []
    original = behavior._behavior

    def slow(*arguments):
        threading.Event().wait(0.3)
        return original(*arguments)

    monkeypatch.setattr("explainers.network.behavior._behavior", slow)
    METHODS["rise"].function(
        Net(), pictures(1), 1, samples=8, batch_size=1, budget=0.25, progress=lambda p: seen.append(p.done)
    )

    assert len(seen) > 1


@pytest.mark.parametrize("through", [None, ("second", [0, 2])])
def test_targets_and_restricted_gradients_of_combined_rows(through):
    net, images = Net(MIXING["mean"]), pictures()
    for target in (None, explainers.unit("second", 2, "max"), explainers.Probability([1, 2])):
        if through and isinstance(target, explainers.targets.Unit):
            continue
        both = explain("saliency", net, images, target, through=through)
        each = [target if not isinstance(target, explainers.Probability) else target.rows([n]) for n in range(2)]
        alone = [explain("saliency", net, images[n : n + 1], each[n], through=through).map for n in range(2)]
        assert rel(both.map, torch.cat(alone)) < 1e-6


@pytest.mark.parametrize("function", [MIXING["mean"], NOISE["dropout"]])
@pytest.mark.parametrize("name", ["attention_rollout", "transformer_attribution", "le_grad", "attention_heads"])
def test_attention_is_recorded_row_by_row(name, function):
    class Vit(ClassToken):
        def forward(self, x):
            return super().forward(function(x))

    torch.manual_seed(0)
    net = Vit(grid=(2, 2)).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    both, again = (explain(name, net, images, [1, 2]).map for _ in range(2))

    alone = [explain(name, net, images[n : n + 1], n + 1).map for n in range(2)]
    assert rel(both, torch.cat(alone)) < 1e-5 and torch.equal(both, again)


@pytest.mark.parametrize("function", [MIXING["mean"], NOISE["dropout"]])
def test_metrics_and_smoothing_run_rows_alone(function):
    net, images = Net(function), pictures()
    before = states()

    both = evaluate(net, images, "grad_cam", target=[1, 2], metrics=("deletion", "sensitivity_max"), steps=3)

    for n in range(2):
        chosen = {"target": [n + 1], "metrics": ("deletion", "sensitivity_max"), "steps": 3}
        one = evaluate(net, images[n : n + 1], "grad_cam", **chosen)
        for name, values in one.values.items():
            torch.testing.assert_close(both.values[name][n : n + 1], values, rtol=1e-4, atol=1e-6, equal_nan=True)
    (finding,) = both.findings
    assert finding.code in ("rows_depend", "stochastic")
    mean = smooth("grad_cam", sigma=0.1, samples=2)(net, images, [1, 2]).mean
    alone = [smooth("grad_cam", sigma=0.1, samples=2)(net, images[n : n + 1], n + 1).mean for n in range(2)]
    assert rel(mean, torch.cat(alone)) < 1e-5 and states() == before


def test_a_function_as_forward_is_run_row_by_row_too():
    for function in (MIXING["mean"], NOISE["dropout"]):
        net, images = Net(function), pictures()
        forward = {"forward": lambda images, net=net: net(images)}
        both = explain("occlusion", net, images, 1, window=6, stride=6, **forward)
        alone = [explain("occlusion", net, image[None], 1, window=6, stride=6, **forward).map for image in images]
        assert rel(both.map, torch.cat(alone)) < 1e-6


def test_a_network_that_needs_its_batch_and_combines_rows_is_refused():
    def pairs(x):
        assert len(x) == 2, "pairs only"
        return x - 0.5 * x.mean(0)

    with pytest.raises(UnsupportedModel, match="combines the images of a batch.*single image"):
        saliency(Net(pairs), pictures(), 1)


def test_threads_explain_a_stochastic_network_at_once():
    net, images, found = Net(NOISE["dropout"]), pictures(), []
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
    net, images = Net(broken), pictures()
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


class FirstRow(nets.Conv):
    """Changes the first row of a batch, where the features of the first image are 0."""

    def between(self, x):
        return x.clone().put_(torch.arange(64), 3 * x.flatten()[:64])


def test_equal_rows_with_different_outputs_are_found():
    images = nets.lights(3)
    net = FirstRow()
    images[0] = -10 * net.first.weight[0].detach().repeat(1, 8, 8)
    assert not net.first(images)[0, 0].relu().any()

    found = explain("saliency", net, images, 1)

    assert "rows_depend" in codes(found)
    alone = torch.cat([saliency(FirstRow(), image, 1) for image in images.split(1)])
    torch.testing.assert_close(found.raw, alone)


class Parts(nets.Conv):
    """Runs eight images at a time, more than in the check of rows."""

    def forward(self, x):
        return torch.cat([super(Parts, self).forward(part) for part in x.split(8)])


@pytest.mark.parametrize("name", ["grad_cam", "eigen_cam", "feature_maps", "score_cam", "layer_integrated_gradients"])
@pytest.mark.parametrize("layer", [None, "relu#0"])
def test_a_layer_that_runs_on_parts_of_the_batch_is_refused(name, layer):
    """Without the refusal, the maps of the first eight images are the result for ten."""
    with pytest.raises(ExplainerError, match="8 rows for 10 images.*fewer images|runs 2 times"):
        METHODS[name](Parts(), torch.rand(10, 3, 32, 32), 1, layer=layer)
    assert len(METHODS[name](Parts(), torch.rand(8, 3, 32, 32), 1)) == 8
