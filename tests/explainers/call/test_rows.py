"""Networks that combine the rows of a batch, draw random numbers or write to buffers: each row runs alone.

`test_kinds.py` compares the maps of all such networks; here is what is special about these passes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS, BadOption, ExplainerError, Probability, UnsupportedModel, evaluate, explain, saliency
from explainers.probe.generators import Generators
from tests.support import deciding_nets as nets
from tests.support.kinds import MIXING, NOISE, WRITING, Applied, Observed, Temperature, unequal
from tests.support.nets import ClassToken, rel
from tests.support.traces import nothing_left

MIXED_OR_RANDOM = pytest.mark.parametrize("function", [MIXING["mean"], NOISE["dropout"]], ids=["mean", "dropout"])
IMAGES = unequal(2)


def codes(net, images=IMAGES, **options):
    return [finding.code for finding in explain("saliency", net, images, 1, **options).findings[0]]


def states(net=None):
    return Generators(net or nn.Identity(), torch.device("cpu")).states()


def assert_alone(call: Callable[[Tensor, Any], Tensor], images: Tensor = IMAGES, targets: Any = (1, 2)) -> None:
    """Each row of the result for a batch is the result of its image alone, and the same in the next call."""
    both = call(images, [*targets])
    alone = [call(image, target) for image, target in zip(images.split(1), targets, strict=True)]
    assert rel(both, torch.cat(alone)) < 1e-5 and torch.equal(both, call(images, [*targets]))


@pytest.mark.parametrize("generator", [torch.Generator, random.Random, lambda: numpy.random.default_rng(0)])
def test_a_generator_of_a_module_is_fixed_and_restored(generator):
    def noise(x):
        return torch.randn((), generator=net.own) if isinstance(net.own, torch.Generator) else net.own.random()

    net = Applied(lambda x: x + noise(x))
    net.own = generator()
    before = states(net)
    first, second = (saliency(net, IMAGES, 1) for _ in range(2))
    explainers.list_layers(net, IMAGES)
    assert torch.equal(first, second) and "stochastic" in codes(net) and states(net) == before


def test_the_generators_are_restored_after_an_error_and_by_several_threads():
    divisors, found = [1.0], []
    net = Applied(lambda x: NOISE["dropout"](x) / divisors[0])
    expected, before = saliency(net, IMAGES, 1), states()
    threads = [threading.Thread(target=lambda: found.append(saliency(net, IMAGES, 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(map, expected) for map in found) and states() == before
    with pytest.raises(BadOption):
        METHODS["rise"].function(net, IMAGES, 1, samples=0)
    divisors.clear()
    with pytest.raises(IndexError):
        saliency(net, IMAGES, 1)
    assert states() == before


def test_noise_that_no_seed_fixes_is_reported():
    hidden = torch.Generator().manual_seed(1)
    net = Applied(lambda x: x + torch.randn(x.shape, generator=hidden))
    (finding,) = [f for f in explain("saliency", net, unequal(1), 1).findings[0] if f.code == "stochastic"]
    assert not finding.facts["is_repeatable"] and "not reproducible" in finding.sentence


def norm(kind: type[nn.Module], **options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 3), kind(6, **options), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_only_networks_that_mix_are_reported_in_any_dtype(dtype):
    for net in (nets.Conv(), norm(nn.BatchNorm2d).train(), norm(nn.InstanceNorm2d)):
        assert not {"rows_depend", "stochastic"} & set(codes(net.to(dtype), IMAGES.to(dtype)))
    assert "rows_depend" in codes(Applied(MIXING["maximum"]).to(dtype), IMAGES.to(dtype))


def test_batch_norm_without_statistics_and_dynamic_quantization_are_found():
    quantized = torch.ao.quantization.quantize_dynamic(nets.Conv(), {nn.Linear}, dtype=torch.qint8)
    for net in (norm(nn.BatchNorm2d, track_running_stats=False).eval(), quantized):
        assert_alone(partial(explainers.occlusion, net, window=6, stride=6))
        assert "rows_depend" in [each.code for each in explain("occlusion", net, IMAGES, 1).findings[0]]


def test_targets_and_restricted_gradients_of_combined_rows():
    net, unit = Applied(MIXING["mean"]), explainers.unit("second", 2, "max")
    for through in (None, ("second", [0, 2])):
        for both, each in ((None, (None, None)), (Probability([1, 2]), (1, 2)), (unit, (unit, unit))):
            if through is None or both is not unit:
                alone = [
                    saliency(net, image, Probability(own) if own in (1, 2) else own, through=through)
                    for image, own in zip(IMAGES.split(1), each, strict=True)
                ]
                assert rel(saliency(net, IMAGES, both, through=through), torch.cat(alone)) < 1e-6


@MIXED_OR_RANDOM
def test_attention_is_recorded_row_by_row(function):
    class Vit(ClassToken):
        def forward(self, x):
            return super().forward(function(x))

    net = Vit(grid=(2, 2)).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for name in ("attention_rollout", "transformer_attribution", "le_grad", "attention_heads"):
        assert_alone(lambda x, target, name=name: explain(name, net, x, target).map, images)


@MIXED_OR_RANDOM
def test_metrics_smoothing_and_functions_as_forward_run_rows_alone(function):
    net, before, smooth = Applied(function), states(), explainers.smooth("grad_cam", sigma=0.1, samples=2)

    def metric(images, target):
        found = evaluate(net, images, "grad_cam", target=target, metrics=("deletion", "sensitivity_max"), steps=3)
        assert len(images) == 1 or found.findings[0].code in ("rows_depend", "stochastic")
        return torch.stack([*found.values.values()], 1).nan_to_num(9)

    assert_alone(metric)
    assert_alone(lambda images, target: smooth(net, images, target).mean)
    assert_alone(partial(explainers.occlusion, net, window=6, stride=6, forward=lambda images: net(images)))
    assert states() == before


def test_a_network_that_needs_its_batch_and_combines_rows_is_refused():
    """Each row depends on the other, or only one of them."""

    def pairs(x, weights):
        assert len(x) == 2, "pairs only"
        return torch.tensordot(torch.tensor(weights), x, 1)

    for weights in ([[0.75, -0.25], [-0.25, 0.75]], [[1.0, 0.0], [0.5, 1.0]], [[1.0, 0.5], [0.0, 1.0]]):
        with pytest.raises(UnsupportedModel, match="combines the images of a batch.*single image"):
            saliency(Applied(partial(pairs, weights=weights)), IMAGES, 1)


def test_equal_rows_with_different_outputs_are_found():
    """The network changes the first row of a batch, where the features of the first image are 0."""
    net = Applied(lambda x: x.clone().put_(torch.arange(64), 3 * x.flatten()[:64]), inside=True)
    images = nets.lights(3)
    images[0] = -10 * net.first.weight[0].detach().repeat(1, 8, 8)
    assert not net.first(images)[0, 0].relu().any() and "rows_depend" in codes(net, images)
    assert_alone(partial(saliency, net), images, (1, 1, 1))


class Parts(nets.Conv):
    """Runs eight images at a time, more than in the check of rows."""

    def forward(self, x):
        return torch.cat([super(Parts, self).forward(part) for part in x.split(8)])


def test_a_layer_that_runs_on_parts_of_the_batch_is_refused():
    """Without the refusal, the maps of the first eight images are the result for ten."""
    for name in ("grad_cam", "eigen_cam", "feature_maps", "score_cam", "layer_integrated_gradients"):
        for layer in (None, "relu#0"):
            with pytest.raises(ExplainerError, match="8 rows for 10 images.*fewer images|runs 2 times"):
                METHODS[name](Parts(), torch.rand(10, 3, 32, 32), 1, layer=layer)
            assert len(METHODS[name](Parts(), torch.rand(8, 3, 32, 32), 1)) == 8


def test_the_dtype_of_images_must_be_that_of_a_part_of_the_network():
    with pytest.raises(explainers.BadImages, match=r"torch\.float16.*torch\.float64"):
        explainers.grad_cam(Temperature(torch.float64), IMAGES.half(), 1)


# Forward passes that write to buffers


BRIGHT = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 3
MAPS = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(1))


def fails(net: nn.Module) -> None:
    with pytest.raises(ZeroDivisionError):
        saliency(net, BRIGHT, 1, forward=lambda images: net(images) / (1 // 0))


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "list_layers": lambda net: explainers.list_layers(net, BRIGHT),
    "default_layer": lambda net: explainers.default_layer(net, BRIGHT),
    "describe": lambda net: explainers.describe(net, BRIGHT),
    "evaluate": lambda net: explainers.evaluate(net, BRIGHT, MAPS, steps=2, controls=False),
    "compare_models": lambda net: explainers.compare_models(net, net, BRIGHT),
    "intervene": lambda net: explainers.intervene(net, BRIGHT),
    "smallest_region": lambda net: explainers.smallest_region(net, BRIGHT, MAPS),
    "smooth": lambda net: explainers.smooth("saliency", sigma=0.1, samples=2)(net, BRIGHT, 1),
    "patch_effects": lambda net: explainers.patch_effects(net, BRIGHT[..., :3, :3], BRIGHT[..., 3:6, :3], 1),
    "forward=": lambda net: saliency(net, BRIGHT, 1, forward=lambda images: net(images)),
    "a failing forward=": fails,
    "randomization_test": lambda net: explainers.randomization_test(net, BRIGHT, "saliency", seeds=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_all_buffers_as_they_were(call: str) -> None:
    """Also in training mode, in which a function that runs the model itself is refused."""
    trained = [] if "forward=" in call else [Observed().train()]
    for net in [*(WRITING[kind]() for kind in ("in place", "inside", "replaced", "resized")), *trained]:
        for _ in range(2):
            with nothing_left(net, BRIGHT):
                CALLS[call](net)


def test_an_exported_graph_runs_with_other_buffers_for_one_call() -> None:
    """It cannot be copied."""
    net = torch.export.export(Observed(), (BRIGHT[:1],)).module()
    for _ in range(2):
        with nothing_left(net, BRIGHT):
            assert "buffers_written" in codes(net, BRIGHT[:1])


class Fading(nn.Module):
    """Multiplies the image by a buffer that each pass makes smaller, in its place or by a new tensor."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("factor", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.factor.mul_(0.9)
        else:
            self.factor = self.factor * 0.9
        return x * self.factor


def traced(net: nn.Module) -> nn.Module:
    copied = torch.jit.trace(net, BRIGHT, check_trace=False)
    copied.get_submodule("0").factor.fill_(1.0)  # tracing is a pass
    return copied


def part_is_scripted(net: nn.Module) -> nn.Module:
    return nn.Sequential(torch.jit.script(net[0]), *net[1:]).eval()


@pytest.mark.parametrize(
    ("freeze", "in_place"),
    [(torch.jit.script, True), (torch.jit.script, False), (traced, True), (part_is_scripted, True),
     (part_is_scripted, False)],
)  # fmt: skip
def test_a_compiled_network_has_its_buffers_after_a_call_and_in_each_pass(freeze: Any, in_place: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Fading(in_place), nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    expected = explain("occlusion", plain.eval(), BRIGHT, 1, window=8)
    net = freeze(plain)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for _ in range(2):
        found = explain("occlusion", net, BRIGHT, 1, window=8)
        torch.testing.assert_close(found.map, expected.map)
        assert [finding.code for finding in found.findings[0]] == ["buffers_written"]
        torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["forward=", "exported"])
def test_calls_in_two_threads_put_the_buffers_of_a_network_back_that_cannot_be_copied(kind: str) -> None:
    net: nn.Module = Observed()
    options: dict[str, Any] = {"window": 8, "batch_size": 1}
    if kind == "exported":
        net = torch.export.export(net, (BRIGHT[:1],)).module()
    else:
        options["forward"] = lambda images: net(images)
    before, first, second = dict(net.named_buffers()), threading.Event(), threading.Event()

    def occlude(reached: threading.Event, other: threading.Event) -> None:
        def wait(_: Any) -> None:
            reached.set()
            other.wait(1)  # the calls run after each other, so only the first one waits in vain

        explainers.occlusion(net, BRIGHT[:1], 1, progress=wait, **options)

    threads = [threading.Thread(target=occlude, args=each) for each in ((first, second), (second, first))]
    with nothing_left(net, BRIGHT):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(before[name] is tensor for name, tensor in net.named_buffers())


def codes_of_writing(net: nn.Module, **options: Any) -> set[str]:
    found = explain("grad_cam", net, BRIGHT, 1, layer="conv", **options).findings
    return {finding.code for row in found for finding in row}


def test_the_map_is_that_of_a_pass_with_the_buffers_of_the_model() -> None:
    net = Observed()
    for image in BRIGHT.split(1):
        frozen = Observed("none")
        frozen.size.copy_(0.9 * net.size + 0.1 * image.abs().mean())
        torch.testing.assert_close(saliency(net, image, 1), saliency(frozen, image, 1), rtol=1e-4, atol=1e-7)


def test_only_a_network_that_writes_has_a_finding_also_if_it_starts_to() -> None:
    """The new values depend on the image, but only the guard reads them: they are no decision."""
    net = Observed("none")
    assert [codes_of_writing(net) for _ in range(3)] == [set()] * 3
    net.update = "in place"
    assert "buffers_written" in codes_of_writing(net) | codes_of_writing(net)
    assert float(net.size) == 1 and int(net.count) == 0
    for update in ("in place", "replaced"):
        assert codes_of_writing(Observed(update)) == {"buffers_written", "rows_depend"}


def test_statistics_that_training_in_another_thread_updates_are_not_restored() -> None:
    """The call runs a copy, so it does not undo what the other thread writes."""
    net, reached, go_on = Observed(), threading.Event(), threading.Event()

    def watch(step: Any) -> None:
        reached.set()
        go_on.wait(10)

    call = threading.Thread(target=lambda: explainers.occlusion(net, BRIGHT, 1, window=8, batch_size=1, progress=watch))
    call.start()
    assert reached.wait(30)
    net.size.fill_(5.0)
    go_on.set()
    call.join()
    assert float(net.size) == 5.0


def test_values_that_are_loaded_during_a_call_are_kept() -> None:
    net = Observed("none")
    saliency(net, BRIGHT, 1)  # it does not write
    after = {name: tensor + 1 for name, tensor in net.state_dict().items()}
    explainers.occlusion(net, BRIGHT, 1, window=8, progress=lambda _: net.load_state_dict(after))
    torch.testing.assert_close(dict(net.state_dict()), after, rtol=0, atol=0)


def test_a_first_call_that_is_interrupted_leaves_the_generator_as_it_was() -> None:
    class Noisy(nn.Module):
        def __init__(self, passes: int) -> None:
            super().__init__()
            self.head, self.left = nn.Linear(3, 4), [passes]

        def forward(self, x: Tensor) -> Tensor:
            x = x + torch.rand_like(x)
            self.left[0] -= 1
            if not self.left[0]:
                raise KeyboardInterrupt
            return self.head(x.mean((2, 3)))

    for passes in range(1, 6):
        net, before = Noisy(passes).eval(), torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            saliency(net, BRIGHT, 1)
        assert torch.equal(torch.get_rng_state(), before), passes


def test_a_network_that_counts_its_passes_is_refused_for_that_reason() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.passes = nn.Linear(3, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return self.head(x.mean((2, 3))) * self.passes

    for method in ("lrp", "deep_lift"):
        with pytest.raises(explainers.UnsupportedOperation, match="from pass to pass, even with fixed seeds"):
            explain(method, Counting().eval(), BRIGHT, 1)
