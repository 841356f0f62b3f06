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


def log_of(*rows: tuple[int, str, float], sizes: dict[str, int] | None = None) -> GradientLog:
    """Create a log from (step, name, norm)."""
    log = GradientLog(names=tuple(dict.fromkeys(name for _, name, _ in rows)))
    for step, name, norm in rows:
        while log.current < step:
            log.step()
        size = (sizes or {}).get(name, 1)
        log.record(name, None, "parameter", torch.full((size,), norm / size**0.5).double(), histograms=0, every=1)
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


def test_vanishing_is_not_forgotten_after_the_last_layer_has_learned_a_constant():
    """A deep sigmoid network fits a fixed batch until its last layer has learned the mean."""
    torch.manual_seed(0)
    net = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(64, 64), nn.Sigmoid())), nn.Linear(64, 10))
    x = torch.randn(32, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record_gradients(net) as log:
        for step in range(1, 201):
            optimizer.zero_grad()
            (net(x).mean(1) - x[:, 0]).pow(2).mean().backward()
            optimizer.step()
            if step in (3, 20, 60, 200):
                found = by_code(diagnose_training(log))
                assert found.keys() == {"vanishing"} and found["vanishing"].sentence.startswith("Since step 0, "), step
                ((_, factor),) = found["vanishing"].remedy["scale_gradients"]["factors"].items()
                assert factor > 1000
                assert ("it has not grown since" in found["vanishing"].sentence) == (step >= 60), step


def test_vanishing_ends_if_the_first_layer_receives_gradients_again_and_not_if_only_the_last_one_falls():
    def run(*phases: tuple[float, float]) -> list[str]:
        ends = [end for phase in phases for end in [phase] * 30]
        rows = [(k, name, each[i]) for k, each in enumerate(ends) for i, name in enumerate(("a.w", "b.w"))]
        return [each.sentence for each in diagnose_training(log_of(*rows)) if each.code == "vanishing"]

    assert run((1e-6, 1.0), (0.1, 0.5)) == []
    assert "Since step 0, " in run((1e-6, 1.0), (1e-6, 1e-6))[0]
    assert "Since step 30, " in run((1.0, 1.0), (1e-6, 1.0), (1e-7, 1e-7))[0]
    assert run((1.0, 1.0), (1e-6, 1e-6)) == [], "a run that converges"
    assert run((1.0, 1.0), (1e-6, 1e-6), (1e-8, 1e-4), (1e-6, 1e-6)) == [], "the first layer recovered"


def test_a_layer_that_is_recorded_only_in_some_steps_is_compared_in_these():
    rows = [(k, name, norm) for k in range(30) for name, norm in (("a.w", 1e-5), ("b.w", 1.0))]
    log = log_of(*(row for row in rows if row[1] == "b.w" or row[0] % 3 == 0))
    assert by_code(diagnose_training(log)).keys() == {"vanishing"}


def test_inputs_that_are_zero_are_not_dead_units():
    """Black borders give zeros in the gradient of the first weight, and none in that of its bias."""
    net = mlp(2, nn.Tanh)
    x = torch.randn(32, 16) * (torch.arange(16) < 4)
    with record_gradients(net) as log:
        (net(x) - 1).pow(2).mean().backward()
    assert max(row.statistics["zero_fraction"] for row in log.rows) == 0.75
    assert diagnose_training(log) == []


def test_dead_units_are_found_with_the_step_they_began_in():
    net = mlp(2, nn.ReLU)
    with record_gradients(net) as log:
        descend(net, 7, 0.001)
        with torch.no_grad():
            net[0].bias[:12] = -100.0  # these units are never active again
        descend(net, 20, 0.001)
    found = by_code(diagnose_training(log))["dead"]
    assert "since step 7" in found.sentence and ("'0.weight'" in found.sentence or "'0.bias'" in found.sentence)
    assert "75%" in found.sentence and "torch.nn.LeakyReLU" in found.remedy
    assert by_code(diagnose_training(log, dead=0.9)).keys().isdisjoint({"dead"})


def test_a_layer_that_is_frozen_during_the_run_is_reported_with_the_step():
    net, factor = mlp(1, nn.Tanh), 1.0
    with scale_gradients(net, {"*": 1.0}), replace_gradient(net[0].weight, lambda g: g * factor):
        with record_gradients(net) as log:
            descend(net, 3, 0.01)
            factor = 0.0
            descend(net, 20, 0.01)
    assert "since step 3" in by_code(diagnose_training(log))["frozen"].sentence


def test_if_no_parameter_receives_a_gradient_a_finished_loss_is_a_possible_cause():
    net = mlp(2, nn.Tanh)
    with record_gradients(net) as log:
        (net(torch.ones(1, 16)) * 0).sum().backward()
    found = by_code(diagnose_training(log))["dead"]
    assert "no parameter receives a gradient" in found.sentence and "loss has reached its minimum" in found.sentence


def normalized(norm: type[nn.Module], act: type[nn.Module], depth: int) -> nn.Sequential:
    parts = [part for _ in range(depth) for part in (nn.Linear(16, 16), norm(16), act())]
    return nn.Sequential(*parts, nn.Linear(16, 1))


HEALTHY: dict[str, Callable[[], nn.Sequential]] = {
    "mlp": lambda: mlp(3, nn.Tanh),
    "batch norm": lambda: normalized(nn.BatchNorm1d, nn.ReLU, 6),
    "layer norm": lambda: normalized(nn.LayerNorm, nn.GELU, 4),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 1),
    ),
}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.02),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.003),
}


@pytest.mark.sample
@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fixed", [False, True])
def test_long_healthy_runs_have_no_findings(name, optimizer, fixed):
    """Also if the loss of a fixed batch becomes so small that all gradients do."""
    torch.manual_seed(0)
    net = HEALTHY[name]()
    optimizer = OPTIMIZERS[optimizer](net.parameters())
    x = torch.randn(32, 16)
    with record_gradients(net) as log:
        for _ in range(400):
            x = x if fixed else torch.randn(32, 16)
            optimizer.zero_grad()
            (net(x) - x[:, :1]).pow(2).mean().backward()
            optimizer.step()
    assert diagnose_training(log) == []


def test_the_threshold_of_vanishing_is_the_ratio_of_first_to_last_layer():
    """Root mean squares of 0.0005 and 1; healthy steps more than twenty steps ago do not count."""
    rows = [(k, name, norm) for k in range(30) for name, norm in (("a.w", 1.0 if k < 18 else 5e-4), ("b.w", 1.0))]
    log = log_of(*rows)
    assert by_code(diagnose_training(log))["vanishing"].remedy == {"scale_gradients": {"factors": {"a.*": 2000.0}}}
    assert diagnose_training(log, vanishing=1e-4) == []


def test_large_layers_are_compared_by_their_mean():
    """A norm grows with the number of values; 10 over a million values is a root mean square of a hundredth."""
    sizes = {"b.w": 10**6}
    assert diagnose_training(log_of((0, "a.w", 1.0), (0, "b.w", 10.0), sizes=sizes)) == []
    found = by_code(diagnose_training(log_of((0, "b.w", 1.0), (0, "a.w", 10.0), sizes=sizes)))
    assert found.keys() == {"vanishing"}, "0.001 before 10"


HOOKS = {
    "freeze": lambda net: freeze(net, "0.*"),
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
def test_a_frozen_layer_is_reported_as_frozen_and_neither_as_dead_nor_as_vanishing(hook):
    net = mlp(1, nn.ReLU)
    with hook(net), record_gradients(net) as log:
        descend(net, 5, 0.01)
    found = by_code(diagnose_training(log))
    assert found.keys() == {"frozen"} and "LeakyReLU" not in str(found) and "leaky" not in str(found)
    assert found["frozen"].sentence.startswith("Gradient hooks set the gradient of '0.weight' (norm before hooks: ")
    whole_layer = hook is not HOOKS["a hook of the user's own"]
    assert not found["frozen"].remedy and ("also for 1 other parameter" in str(found)) == whole_layer


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
        hidden = net[0](torch.ones(1, 16))
        (net[2](hidden.detach()) * math.nan + hidden.sum()).sum().backward()
    assert all(not math.isfinite(row.statistics["norm"]) for row in log.rows)
    found = by_code(diagnose_training(log))["non_finite"]
    assert "'2.weight' is the first" in found.sentence, "the clip made NaN of layer 0's finite gradient"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_non_finite_step_and_tensor_are_named(value):
    log = log_of((0, "b", 1.0), (0, "a", 1.0), (1, "b", 1.0), (1, "a", value), (2, "b", value), (2, "a", value))
    found = by_code(diagnose_training(log))["non_finite"]
    assert "'a'" in found.sentence and "step 1" in found.sentence
    assert found.remedy == {"torch.autograd.detect_anomaly": {"check_nan": True}}


def test_growth_before_a_nan_is_named_as_its_cause():
    rows = [(k, "w", 10.0**k) for k in range(8)] + [(8, "w", math.inf)]
    found = by_code(diagnose_training(log_of(*rows)))
    assert found["non_finite"].remedy == found["exploding"].remedy and "Clip" in found["non_finite"].sentence


def test_statistics_that_were_not_recorded_give_no_findings():
    net = mlp(8, nn.Sigmoid)
    with freeze(net, "4.*"), record_gradients(net, statistics=("mean",)) as log:
        descend(net, 5, 0.01)
    assert diagnose_training(log) == []
