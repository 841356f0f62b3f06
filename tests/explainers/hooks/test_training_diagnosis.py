"""`diagnose_training`: each failure is provoked and found by its code; a healthy run has no findings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch import nn

from explainers import (
    GradientLog,
    add_gradient_noise,
    clip_gradients,
    diagnose_training,
    freeze,
    record_gradients,
    replace_gradient,
    scale_gradients,
)
from explainers.findings import Finding
from explainers.training.rows import Row


def log_of(*rows: tuple[int, str, float], zeros: float = 0.0, size: int = 1) -> GradientLog:
    """Create a log from (step, name, norm)."""
    log = GradientLog(names=tuple(dict.fromkeys(name for _, name, _ in rows)))
    for step, name, norm in rows:
        log._rows.append(Row(step, name, "parameter", size, {"norm": norm, "max": norm, "zero_fraction": zeros}))
    return log


def by_code(found: list[Finding]) -> dict[str, Finding]:
    assert len({each.code for each in found}) == len(found), "each finding once"
    assert all(each.sentence.endswith(".") for each in found)
    assert all(each.remedy or "hook" in each.sentence for each in found), "if a hook is the cause, it is named"
    return {each.code: each for each in found}


def mlp(depth: int, act: type[nn.Module], width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), act())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def descend(net: nn.Module, steps: int, lr: float) -> None:
    x = torch.randn(32, net[0].in_features, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x) - x[:, :1]).pow(2).mean().backward()
        optimizer.step()


def test_a_healthy_run_has_no_findings():
    net = mlp(2, nn.Tanh)
    with record_gradients(net) as log:
        descend(net, 50, 0.05)
    assert diagnose_training(log) == []
    assert diagnose_training(GradientLog()) == []


def test_gradients_explode_at_too_large_a_learning_rate_and_not_with_the_remedy():
    def run(**clip: float) -> list[Finding]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 1))
        with record_gradients(net) as log, clip_gradients(net, **(clip or {"norm": 1e30})):
            descend(net, 30, 3.0)
        return diagnose_training(log)

    found = by_code(run())["exploding"]
    assert "lower the learning rate" in found.sentence
    (call, options), *rest = found.remedy.items()
    assert call == "clip_gradients" and not rest and options["norm"] > 0
    assert run(**options) == []


def test_the_threshold_of_exploding_is_the_stated_growth():
    """Over 20 steps a factor of q each gives q^19: 1.12 stays below 10, 1.14 does not."""

    def growing(factor: float) -> GradientLog:
        return log_of(*((step, "w", factor**step) for step in range(60)))

    assert diagnose_training(growing(1.12)) == []
    found = by_code(diagnose_training(growing(1.14)))["exploding"]
    assert "step 0" in found.sentence and found.remedy == {"clip_gradients": {"norm": 1.0}}
    assert diagnose_training(growing(1.14), growth=20) == []
    assert by_code(diagnose_training(growing(1.12), window=30)).keys() == {"exploding"}


def test_one_outlier_and_falling_norms_are_not_exploding():
    assert diagnose_training(log_of(*((k, "w", 50.0 if k == 12 else 1.0) for k in range(40)))) == []
    assert diagnose_training(log_of(*((k, "w", 0.5**k) for k in range(40)))) == []
    assert diagnose_training(log_of((0, "w", 1.0), (1, "w", 100.0))) == [], "two points are not a trend"


def test_gradients_vanish_in_deep_sigmoid_networks_naming_the_layers():
    net = mlp(8, nn.Sigmoid)
    with record_gradients(net) as log:
        descend(net, 10, 0.01)
    found = by_code(diagnose_training(log))["vanishing"]
    assert "first layer '0'" in found.sentence and "last layer '16'" in found.sentence

    (call, options), *rest = found.remedy.items()
    assert call == "scale_gradients" and not rest
    with scale_gradients(net, **options), record_gradients(net) as log:
        descend(net, 10, 0.01)
    assert "vanishing" not in by_code(diagnose_training(log))


def test_the_threshold_of_vanishing_is_the_ratio_of_first_to_last_layer():
    """Root mean squares of 0.0005 and 1; healthy steps more than twenty steps ago do not count."""
    rows = [(k, name, norm) for k in range(30) for name, norm in (("a.w", 1.0 if k < 18 else 5e-4), ("b.w", 1.0))]
    log = log_of(*rows)
    assert by_code(diagnose_training(log))["vanishing"].remedy == {"scale_gradients": {"factors": {"a.*": 2000.0}}}
    assert diagnose_training(log, vanishing=1e-4) == []


def test_large_layers_are_compared_by_their_mean():
    """A norm grows with the number of values; 1 over a million values is a root mean square of a thousandth."""
    log = log_of((0, "a.w", 1.0))
    log._rows.append(Row(0, "b.w", "parameter", 10**8, {"norm": 1000.0}))
    log.names = ("a.w", "b.w")
    assert diagnose_training(log) == [], "0.1 behind 1"
    log.names = ("b.w", "a.w")
    log._rows[0] = Row(0, "a.w", "parameter", 1, {"norm": 1000.0})
    assert by_code(diagnose_training(log)).keys() == {"vanishing"}


def test_dead_units_are_found():
    net = mlp(2, nn.ReLU)
    with torch.no_grad():
        net[0].bias[:12] = -100.0  # these units are never active
    with record_gradients(net) as log:
        descend(net, 5, 0.001)
    found = by_code(diagnose_training(log))["dead"]
    assert "'0.weight'" in found.sentence or "'0.bias'" in found.sentence
    assert "75%" in found.sentence and "torch.nn.LeakyReLU" in found.remedy
    assert by_code(diagnose_training(log, dead=0.9)).keys().isdisjoint({"dead"})


HOOKS = {
    "freeze": lambda net: freeze(net, "0.*"),
    "a factor of 0": lambda net: scale_gradients(net, {"0.*": 0.0}),
    "a function": lambda net: replace_gradient(net[0].weight, torch.zeros_like),
    "a hook of the user's own": lambda net: own_hook(net[0].weight, torch.zeros_like),
    "freeze behind a clip": lambda net: both(clip_gradients(net, norm=1.0), freeze(net, "0.*")),
    "freeze before a clip": lambda net: both(freeze(net, "0.*"), clip_gradients(net, norm=1e-3)),
}


@contextmanager
def own_hook(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    handle = tensor.register_hook(function)
    yield
    handle.remove()


@contextmanager
def both(*blocks: AbstractContextManager[None]) -> Iterator[None]:
    with blocks[0], blocks[1]:
        yield


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("act", [nn.Tanh, nn.ReLU])
def test_a_frozen_layer_is_reported_as_frozen_and_neither_as_dead_nor_as_vanishing(hook, act):
    net = mlp(1, act)
    with hook(net), record_gradients(net) as log:
        descend(net, 5, 0.01)
    found = by_code(diagnose_training(log))
    assert found.keys() == {"frozen"} and "LeakyReLU" not in str(found) and "leaky" not in str(found)
    assert found["frozen"].sentence.startswith("Gradient hooks set the gradient of '0.weight' (norm before hooks: ")
    assert not found["frozen"].remedy and ("also for 1 other parameter" in str(found)) == (len(zeroed(log)) == 2)


def zeroed(log: GradientLog) -> set[str]:
    return {row.name for row in log.rows if row.statistics["zero_fraction"] == 1}


def test_a_mask_is_a_hook_too_and_partial_freezing_is_distinguished_from_full_freezing():
    net = mlp(1, nn.Tanh)
    mask = torch.ones(16, 16)
    mask[:12] = 0
    with replace_gradient(net[0].weight, lambda g: g * mask), record_gradients(net) as log:
        descend(net, 5, 0.01)
    assert "set at least 75% of the gradient of '0.weight'" in by_code(diagnose_training(log))["frozen"].sentence
    assert diagnose_training(log, dead=0.8) == []


def test_dead_units_stay_dead_units_under_hooks():
    """Noise hides the zeros and freezing adds more, but neither changes the finding."""
    for hook in (lambda net: add_gradient_noise(net, std=0.1), lambda net: freeze(net, "0.*")):
        net = mlp(2, nn.ReLU)
        with torch.no_grad():
            net[0].bias[:12] = -100.0
        with hook(net), record_gradients(net) as log:
            descend(net, 5, 0.001)
        found = by_code(diagnose_training(log))
        assert "75%" in found["dead"].sentence and "units that are not activated" in found["dead"].sentence
        assert "frozen" not in found


def test_hooks_entered_after_the_log_are_not_in_it():
    net = mlp(1, nn.Tanh)
    with record_gradients(net) as log, freeze(net, "0.*"):
        descend(net, 5, 0.01)
    assert diagnose_training(log) == []


def test_a_gradient_that_a_hook_makes_small_does_not_vanish_by_itself():
    """A healthy network with a factor of 1e-6 on its first layer; the remedy is not another activation."""
    net = mlp(1, nn.Tanh)
    with scale_gradients(net, {"0.*": 1e-6}), record_gradients(net) as log:
        descend(net, 5, 0.01)
    found = by_code(diagnose_training(log))
    assert found.keys() == {"vanishing"} and "caused by gradient hooks" in found["vanishing"].sentence
    assert "skip connections" not in found["vanishing"].sentence and not found["vanishing"].remedy
    before = re.search(r"before them the ratio is ([\d.e+-]+)\.", found["vanishing"].sentence)
    assert before and 0.05 < float(before[1]) < 20, "the gradients as they arrive are of similar size"


def test_a_hook_that_makes_nan_is_named_and_one_that_spreads_it_is_not():
    net = mlp(1, nn.Tanh)
    with replace_gradient(net[2].bias, lambda g: g / 0), record_gradients(net) as log:
        descend(net, 1, 0.0)
    found = by_code(diagnose_training(log))["non_finite"]
    assert found.sentence.startswith("A gradient hook makes the gradient of '2.bias' NaN or infinite in step 0")

    net = mlp(1, nn.Tanh)
    with clip_gradients(net, norm=1.0), record_gradients(net) as log:
        (net(torch.ones(1, 16)) * math.inf).sum().backward()
        net.zero_grad()
        hidden = net[0](torch.ones(1, 16))
        (net[2](hidden.detach()) * math.nan + hidden.sum()).sum().backward()
    assert all(not math.isfinite(row.statistics["norm"]) for row in log.rows)
    log._rows = type(log._rows)(row for row in log.rows if row.step == 1)
    found = by_code(diagnose_training(log))["non_finite"]
    assert "'2.weight' is the first" in found.sentence, "the clip made NaN of layer 0's finite gradient"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_non_finite_step_and_tensor_are_named(value):
    log = log_of((0, "b", 1.0), (0, "a", 1.0), (1, "b", 1.0), (1, "a", value), (2, "b", value), (2, "a", value))
    found = by_code(diagnose_training(log))["non_finite"]
    assert "'a'" in found.sentence and "step 1" in found.sentence
    assert found.remedy == {"torch.autograd.detect_anomaly": {"check_nan": True}}


def test_a_layer_that_divides_by_zero_is_found_in_a_real_run():
    """The square root at 0 has an infinite slope; in the backward pass the layer before it is reached first."""

    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - x).sqrt()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), Root(), nn.Linear(3, 1))
    with record_gradients(net) as log:
        net(torch.ones(2, 3)).sum().backward()
    found = by_code(diagnose_training(log))["non_finite"]
    assert "'1.weight'" in found.sentence or "'1.bias'" in found.sentence
    assert "step 0" in found.sentence


def test_growth_before_a_nan_is_named_as_its_cause():
    rows = [(k, "w", 10.0**k) for k in range(8)] + [(8, "w", math.inf)]
    found = by_code(diagnose_training(log_of(*rows)))
    assert found["non_finite"].remedy == found["exploding"].remedy and "Clip" in found["non_finite"].sentence


def test_statistics_that_were_not_recorded_give_no_findings():
    net = mlp(8, nn.Sigmoid)
    with freeze(net, "4.*"), record_gradients(net, statistics=("mean",)) as log:
        descend(net, 5, 0.01)
    assert diagnose_training(log) == []


def test_remedies_are_calls_that_exist():
    """The names in a remedy are public functions."""
    import explainers

    found = diagnose_training(
        log_of(*((k, n, v * 10.0**k) for k in range(5) for n, v in (("a.w", 1e-9), ("b.w", 1.0))))
    )
    assert len(found) == 2
    for finding in found:
        for call in finding.remedy:
            assert hasattr(explainers, call)
