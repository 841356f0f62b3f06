"""`diagnose_training`: each failure is provoked and found by its code; a healthy run has no findings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import diagnose_training, record_gradients
from explainers.findings import Finding

Norm = Callable[[int], float | None]


def log_of(steps: int, sizes: dict[str, int] | None = None, **norms: Norm) -> explainers.GradientLog:
    """Create a log of layers whose one parameter `w` has the given norm in each step; None is not recorded."""
    log = explainers.GradientLog(names=tuple(f"{layer}.w" for layer in norms))
    for step in range(steps):
        for layer, norm in norms.items():
            size, value = (sizes or {}).get(layer, 1), norm(step)
            if value is not None:
                gradient = torch.full((size,), value / size**0.5).double()
                log.record(f"{layer}.w", None, "parameter", gradient, histograms=0, every=1)
        log.step()
    return log


def by_code(log: explainers.GradientLog, **options: float) -> dict[str, Finding]:
    found = diagnose_training(log, **options)
    assert len({each.code for each in found}) == len(found), "each finding once"
    assert all(each.sentence.endswith(".") for each in found)
    assert all(each.remedy or "hook" in each.sentence for each in found), "if a hook is the cause, it is named"
    return {each.code: each for each in found}


def mlp(depth: int, act: type[nn.Module], norm: type[nn.Module] | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for _ in range(depth) for part in (nn.Linear(16, 16), *([norm(16)] if norm else []), act())]
    return nn.Sequential(*parts, nn.Linear(16, 1))


def descend(net: nn.Module, steps: int, lr: float) -> None:
    x = torch.randn(32, net[0].in_features, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x) - x[:, :1]).pow(2).mean().backward()
        optimizer.step()


Hook = Callable[[nn.Module], AbstractContextManager[object]]


def train(net: nn.Module, *hooks: Hook, steps: int = 5, lr: float = 0.01) -> explainers.GradientLog:
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook(net))
        log = stack.enter_context(record_gradients(net))
        descend(net, steps, lr)
    return log


# Norms by hand


def test_the_threshold_of_exploding_is_the_stated_growth():
    """Over 20 steps a factor of q each gives q^19: 9.4 for 1.125, and 10.2 for 1.13."""
    slow, fast = (log_of(60, a=lambda k, q=q: q**k) for q in (1.125, 1.13))
    assert by_code(slow) == by_code(fast, growth=20) == {}
    found = by_code(fast)["exploding"]
    assert "step 0" in found.sentence and found.remedy == {"clip_gradients": {"norm": 1.0}}
    assert by_code(slow, window=30).keys() == {"exploding"}
    assert by_code(log_of(40, a=lambda k: 50.0 if k == 12 else 1.0)) == {}, "one outlier"
    assert by_code(log_of(40, a=lambda k: 0.5**k)) == {}, "falling"
    assert by_code(log_of(2, a=lambda k: 100.0**k)) == {}, "two points are not a trend"
    assert by_code(log_of(40, a=lambda k: 1.0 if k < 9 else 1e-12 * 1.3**k)) == {}, "rounding at a loss of 0"
    both = by_code(log_of(9, a=lambda k: 10.0**k if k < 8 else math.inf))
    assert both["non_finite"].remedy == both["exploding"].remedy and "Clip" in both["non_finite"].sentence


def test_the_threshold_of_vanishing_is_the_ratio_of_first_to_last_layer():
    """Root mean squares of 0.0005 and 1; healthy steps more than twenty steps ago do not count."""
    log = log_of(30, a=lambda k: 1.0 if k < 18 else 5e-4, b=lambda k: 1.0)
    assert by_code(log)["vanishing"].remedy == {"scale_gradients": {"factors": {"a.*": 2000.0}}}
    assert by_code(log, vanishing=1e-4) == {}
    some = log_of(30, a=lambda k: None if k % 3 else 1e-5, b=lambda k: 1.0)
    assert by_code(some).keys() == {"vanishing"}, "recorded only in some steps"
    # A norm grows with the number of values: 10 over a million values is a root mean square of 0.01.
    assert by_code(log_of(1, {"b": 10**6}, a=lambda k: 1.0, b=lambda k: 10.0)) == {}
    assert by_code(log_of(1, {"b": 10**6}, b=lambda k: 1.0, a=lambda k: 10.0)).keys() == {"vanishing"}


def test_vanishing_ends_if_the_first_layer_receives_gradients_again_and_not_if_only_the_last_one_falls():
    def sentence(*phases: tuple[float, float]) -> str:
        a, b = (lambda k, i=i: phases[k // 30][i] for i in (0, 1))
        found = by_code(log_of(30 * len(phases), a=a, b=b))
        return found["vanishing"].sentence if "vanishing" in found else ""

    assert sentence((1e-6, 1.0), (0.1, 0.5)) == ""
    assert re.search("^Since step 0, .*it has not grown since", sentence((1e-6, 1.0), (1e-6, 1e-6)))
    assert sentence((1.0, 1.0), (1e-6, 1.0), (1e-7, 1e-7)).startswith("Since step 30, ")
    assert sentence((1.0, 1.0), (1e-6, 1e-6)) == "", "a run that converges"
    assert sentence((1.0, 1.0), (1e-6, 1e-6), (1e-8, 1e-4), (1e-6, 1e-6)) == "", "the first layer recovered"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_non_finite_step_and_tensor_are_named(value):
    log = log_of(3, b=lambda k: value if k == 2 else 1.0, a=lambda k: value if k else 1.0)
    found = by_code(log)["non_finite"]
    assert "'a.w'" in found.sentence and "step 1" in found.sentence
    assert found.remedy == {"torch.autograd.detect_anomaly": {"check_nan": True}}


# Failures of networks, and their remedies


def test_gradients_vanish_in_deep_sigmoid_networks_naming_the_layers():
    net = mlp(8, nn.Sigmoid)
    found = by_code(train(net, steps=10))["vanishing"]
    assert "first layer '0'" in found.sentence and "last layer '16'" in found.sentence
    assert found.remedy.keys() == {"scale_gradients"}
    log = train(net, lambda net: explainers.scale_gradients(net, **found.remedy["scale_gradients"]), steps=10)
    assert "vanishing" not in by_code(log)


def test_inputs_that_are_zero_are_not_dead_units():
    """Black borders give zeros in the gradient of the first weight, and none in that of its bias."""
    net = mlp(2, nn.Tanh)
    x = torch.randn(32, 16) * (torch.arange(16) < 4)
    with record_gradients(net) as log:
        (net(x) - 1).pow(2).mean().backward()
    assert max(row.statistics["zero_fraction"] for row in log.rows) == 0.75
    assert by_code(log) == {}


def kill_units(net: nn.Module) -> None:
    """Twelve of sixteen units are never active again."""
    with torch.no_grad():
        net[0].bias[:12] = -100.0


def test_dead_units_are_found_with_the_step_they_began_in():
    net = mlp(2, nn.ReLU)
    with record_gradients(net) as log:
        descend(net, 7, 0.001)
        kill_units(net)
        descend(net, 20, 0.001)
    found = by_code(log)["dead"]
    assert "since step 7" in found.sentence and ("'0.weight'" in found.sentence or "'0.bias'" in found.sentence)
    assert "75%" in found.sentence and "torch.nn.LeakyReLU" in found.remedy
    assert "dead" not in by_code(log, dead=0.9) and "since step 7" in by_code(log, dead=0.75)["dead"].sentence
    for hook in (lambda net: explainers.add_gradient_noise(net, std=0.1), lambda net: explainers.freeze(net, "0.*")):
        net = mlp(2, nn.ReLU)
        kill_units(net)
        found = by_code(train(net, hook, lr=0.001))
        assert "75%" in found["dead"].sentence and "units that are not activated" in found["dead"].sentence
        assert "frozen" not in found, "noise hides the zeros and freezing adds more, but neither is the cause"


def test_if_no_parameter_receives_a_gradient_a_finished_loss_is_a_possible_cause():
    net = mlp(2, nn.Tanh)
    with record_gradients(net) as log:
        (net(torch.ones(1, 16)) * 0).sum().backward()
    found = by_code(log)["dead"]
    assert "no parameter receives a gradient" in found.sentence and "loss has reached its minimum" in found.sentence


# Effects of hooks


@contextmanager
def own_hook(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    handle = tensor.register_hook(function)
    yield
    handle.remove()


def behind(*hooks: Hook) -> str:
    """The only finding, of a healthy network behind hooks: it does not suggest to change the network."""
    ((code, found),) = by_code(train(mlp(1, nn.Tanh), *hooks)).items()
    assert not found.remedy and not re.search("leaky|skip connections", found.sentence)
    return f"{code}: {found.sentence}"


def test_an_effect_of_a_hook_is_not_a_fault_of_the_network():
    def freeze_first(net: nn.Module) -> AbstractContextManager[object]:
        return explainers.freeze(net, "0.*")

    whole = r"^frozen: Gradient hooks set the gradient of '0.weight' \(norm before hooks: .* since step 0"
    assert re.search(f"{whole}:", behind(lambda net: own_hook(net[0].weight, torch.zeros_like)))
    for hooks in (
        [freeze_first],
        [lambda net: explainers.clip_gradients(net, norm=1.0), freeze_first],
        [freeze_first, lambda net: explainers.clip_gradients(net, norm=1e-3)],
    ):
        assert re.search(rf"{whole} \(also for 1 other parameter\)", behind(*hooks))
    ratio = re.search(
        r"by gradient hooks: before them the ratio is ([\d.e+-]+)\.",
        behind(lambda net: explainers.scale_gradients(net, {"0.*": 1e-6})),
    )
    assert ratio and 0.05 < float(ratio[1]) < 20, "the gradients as they arrive are of similar size"
    assert re.search(
        "^non_finite: A gradient hook makes the gradient of '2.bias' .* in step 0",
        behind(lambda net: explainers.replace_gradient(net[2].bias, lambda g: g / 0)),
    )


def test_a_mask_freezes_a_part_of_a_layer():
    mask = (torch.arange(16) >= 12)[:, None]
    log = train(mlp(1, nn.Tanh), lambda net: explainers.replace_gradient(net[0].weight, lambda g: g * mask))
    assert "set at least 75% of the gradient of '0.weight'" in by_code(log)["frozen"].sentence
    assert by_code(log, dead=0.8) == {}


def test_a_layer_that_is_frozen_during_the_run_is_reported_with_the_step():
    net, factor = mlp(1, nn.Tanh), 1.0
    with explainers.replace_gradient(net[0].weight, lambda g: g * factor), record_gradients(net) as log:
        descend(net, 3, 0.01)
        factor = 0.0
        descend(net, 20, 0.01)
    assert "since step 3" in by_code(log)["frozen"].sentence


def test_a_clip_that_spreads_nan_to_finite_gradients_is_not_its_cause():
    net = mlp(1, nn.Tanh)
    with explainers.clip_gradients(net, norm=1.0), record_gradients(net) as log:
        hidden = net[0](torch.ones(1, 16))
        (net[2](hidden.detach()) * math.nan + hidden.sum()).sum().backward()
    assert all(not math.isfinite(row.statistics["norm"]) for row in log.rows)
    assert "'2.weight' is the first" in by_code(log)["non_finite"].sentence


# Healthy runs


def test_statistics_that_were_not_recorded_give_no_findings():
    net = mlp(8, nn.Sigmoid)
    with explainers.freeze(net, "4.*"), record_gradients(net, statistics=("mean",)) as log:
        descend(net, 5, 0.01)
    assert by_code(log) == {}


def convolutions() -> nn.Sequential:
    convs = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *convs, nn.Flatten(), nn.Linear(128, 1))


HEALTHY: dict[str, Callable[[], nn.Sequential]] = {
    "mlp": lambda: mlp(3, nn.Tanh),
    "batch norm": lambda: mlp(6, nn.ReLU, nn.BatchNorm1d),
    "layer norm": lambda: mlp(4, nn.GELU, nn.LayerNorm),
    "convolutions": convolutions,
}


@pytest.mark.sample
@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize(("optimizer", "lr"), [(torch.optim.SGD, 0.02), (torch.optim.Adam, 0.003)])
@pytest.mark.parametrize("fixed", [False, True])
def test_long_healthy_runs_have_no_findings(name, optimizer, lr, fixed):
    """Also if the loss of a fixed batch becomes so small that all gradients do."""
    torch.manual_seed(0)
    net = HEALTHY[name]()
    steps = optimizer(net.parameters(), lr=lr)
    x = torch.randn(32, 16)
    with record_gradients(net) as log:
        for _ in range(400):
            x = x if fixed else torch.randn(32, 16)
            steps.zero_grad()
            (net(x) - x[:, :1]).pow(2).mean().backward()
            steps.step()
    assert by_code(log) == {}
