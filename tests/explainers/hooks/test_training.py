"""Gradient hooks for training: closed forms, the order of blocks, norms over all parameters, wrong uses.

`test_blocks.py` has what is true of all blocks: no side effects, threads, memory.
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from fnmatch import fnmatch
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import explainers
from explainers import BadOption, clip_gradients, freeze, record_gradients, scale_gradients
from tests.support.nets import plain, random_images, residual
from tests.support.traces import nothing_left
from tests.support.training import assert_all_close, batch, gradients, gradients_of, loss, one_pass, total_norm
from tests.support.training import two_layers as small


def leaf(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def is_close(actual: Tensor | None, expected: object) -> bool:
    assert actual is not None
    return torch.allclose(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=1e-12, atol=1e-12)


# Closed forms


def test_a_changed_gradient_accumulates_and_later_ones_arrive_unchanged():
    v = leaf(2, 2, 2)
    with explainers.replace_gradient(v, lambda g: g**2):
        v.backward(torch.tensor([1.0, 1, 2]).double())
        assert is_close(v.grad, [1, 1, 4])
        v.backward(torch.tensor([1.0, 1, 1]).double())
    v.backward(torch.tensor([1.0, 2, 3]).double())
    assert is_close(v.grad, [3, 4, 8])


def test_the_gradient_of_an_intermediate_tensor():
    x = nn.Parameter(torch.tensor([[1.0, 2], [3, 4]]).double())
    y, seen = x**2 + 1, []
    with explainers.replace_gradient(y, seen.append), record_gradients({"y": y, "x": x}) as log:
        (y**2).mean().backward()
    assert is_close(seen[0], [[1, 2.5], [5, 8.5]])
    assert is_close(x.grad, [[2, 10], [30, 68]])
    assert [(row.name, row.kind) for row in log.rows] == [("y", "tensor"), ("x", "parameter")]
    assert log.rows[0].statistics["mean"] == pytest.approx(17 / 4)


# Norms over all parameters


def two_passes(net: nn.Module) -> None:
    one_pass(net)
    loss(net(batch(2, size=9.0))).backward()


def passes_over_a_kept_graph(net: nn.Module) -> None:
    total = loss(net(batch()))
    total.backward(retain_graph=True)
    total.backward()


def first_layer(net: nn.Module) -> None:
    """Waiting for the gradients of all parameters would never clip."""
    loss(net[0](batch(2))).backward()


def all_layers_then_the_first(net: nn.Module) -> None:
    """The earlier gradient of the other layer counts and is clipped again."""
    one_pass(net)
    first_layer(net)


def reentrant_checkpoint(net: nn.Module) -> None:
    """Runs a backward pass inside the backward pass."""
    loss(net[2](checkpoint(net[:2], batch().requires_grad_(), use_reentrant=True))).backward()


RUNS = one_pass, first_layer, two_passes, passes_over_a_kept_graph, all_layers_then_the_first, reentrant_checkpoint


def test_a_norm_is_that_of_the_gradients_accumulated_so_far():
    """Clipping each pass separately gives a larger norm."""
    net = small()
    whole = {run: gradients_of(net, run) for run in RUNS}
    for norm, to_none in product((0.5, 1e6), (True, False)):
        with clip_gradients(net, norm=norm):
            for run in RUNS:
                net.zero_grad(set_to_none=to_none)
                run(net)
                factor = min(1, norm / total_norm(whole[run]))
                assert_all_close(gradients(net), [each * factor for each in whole[run]], run.__name__, rtol=1e-9)
                assert factor == 1 or norm < 1e6


def test_norm_after_a_pass_that_failed():
    net = small()
    whole = gradients_of(net)

    def fail(gradient: Tensor) -> None:
        raise RuntimeError("halfway")

    with clip_gradients(net, norm=0.5):
        with explainers.replace_gradient(net[0].weight, fail), pytest.raises(RuntimeError, match="halfway"):
            one_pass(net)
        assert_all_close(gradients_of(net)[:1], [whole[0] * 0.5 / total_norm(whole)], rtol=1e-9)


def test_norm_does_not_affect_autograd_grad():
    """It does not write `.grad`: neither its result nor existing gradients change."""
    net = small()
    expected = torch.autograd.grad(net(batch()).sum(), list(net.parameters()))
    with clip_gradients(net, norm=0.5):
        before = gradients_of(net)
        found = torch.autograd.grad(net(batch()).sum(), list(net.parameters()))
    assert all(map(torch.equal, found, expected)) and all(map(torch.equal, gradients(net), before))


def test_edits_and_records_after_a_norm_see_clipped_gradients():
    """A record entered after the clip sees clipped gradients, one entered before it unclipped ones; edits likewise."""
    net = small()
    length = total_norm(gradients_of(net))
    with record_gradients(net) as before, clip_gradients(net, norm=0.5), record_gradients(net) as between:
        with scale_gradients(net, {"*": 4}), clip_gradients(net, norm=1.5), record_gradients(net) as after:
            for _ in range(3):
                gradients_of(net)
    for log, wanted in ((before, length), (between, 0.5), (after, 1.5)):
        for step in range(3):
            own = [row.statistics["norm"] for row in log.rows if row.step == step]
            assert len(own) == 4 and sum(each**2 for each in own) ** 0.5 == pytest.approx(wanted)
    with clip_gradients(net, norm=0.5), record_gradients(net) as log:
        all_layers_then_the_first(net)
    new = [row.name for row in log.rows if row.step == 1]
    assert new == ["0.weight", "0.bias"], "the other layer is clipped again, but it has no new gradient"


# Factors and noise


def test_scale_multiplies_by_the_factors_of_all_patterns():
    net = small()
    first, others = gradients_of(net)[:2], gradients_of(net)[2:]
    with scale_gradients(net, {"0.*": 0.1, "2.*": 4, "?.*": 1, "2.weight": 0.5, "2.bias": 0.5}):
        assert_all_close(gradients_of(net), [each * 0.1 for each in first] + [each * 2 for each in others], rtol=1e-12)


def test_a_layer_stands_for_all_its_parameters():
    """The same as a shell pattern of their names, in `freeze` and `scale_gradients`."""
    net, x = residual(), random_images()
    for given, patterns in (
        (["layer1"], ["layer1.*"]),
        ([net.layer1], ["layer1.*"]),
        (["layer1.conv1"], ["layer1.conv1.*"]),
        ([net.fc, "conv1"], ["fc.*", "conv1.*"]),
        (["layer?"], ["layer*"]),
        ([net], ["*"]),
    ):
        names = {name for name, _ in net.named_parameters() for each in patterns if fnmatch(name, each)}
        one = given[0] if len(given) == 1 else given
        for block in (freeze(net, one), scale_gradients(net, dict.fromkeys(given, 0.0))):
            with block:
                found = gradients_of(net, lambda net: loss(net(x)).backward())
            zero = {name for (name, _), each in zip(net.named_parameters(), found, strict=True) if not each.any()}
            assert zero == names, patterns


def test_noise_has_the_given_deviation_and_seed_and_its_own_generator():
    v, w = nn.Parameter(torch.zeros(20_000)), nn.Parameter(torch.zeros(20_000))

    def drawn(seed: int, *params: nn.Parameter) -> Tensor:
        v.grad = w.grad = None
        state = torch.get_rng_state()
        with explainers.add_gradient_noise(params, std=0.3, seed=seed):
            (v.sum() + w.sum()).backward()
        assert torch.equal(torch.get_rng_state(), state)
        return v.grad - 1

    noise = drawn(0, v, w)
    assert not torch.equal(noise, w.grad - 1)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.03) and abs(float(noise.mean())) < 0.01
    assert torch.equal(noise, drawn(0, v)), "no other parameter matters"
    assert not torch.equal(noise, drawn(1, v))


# Threads and exits


def test_hooks_run_in_threads_that_python_did_not_start():
    """On an accelerator, hooks run in the engine's threads, regardless of the thread that called backward."""
    import _thread

    v, done = leaf(1), threading.Event()

    def work() -> None:
        v.sum().backward()
        done.set()

    with clip_gradients([v], norm=0.5), scale_gradients(nn.ParameterDict({"v": v}), {"v": 3}):
        _thread.start_new_thread(work, ())
        assert done.wait(10)
    assert is_close(v.grad, [1.5])


def test_blocks_can_be_exited_in_any_order():
    v = leaf(0)
    first, second = clip_gradients([v], norm=1), scale_gradients(nn.ParameterDict({"v": v}), {"v": 5})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    v.backward(torch.tensor([3.0]).double())
    assert is_close(v.grad, [15])
    second.__exit__(None, None, None)


# Refusals


@pytest.mark.parametrize(
    ("function", "which"),
    [
        (lambda g: g[:2], "shape (2,); it must keep shape (3,)"),
        (lambda g: g.float(), "dtype torch.float32; it must keep dtype torch.float64"),
        (lambda g: g.to("meta"), "device meta; it must keep device cpu"),
        (lambda g: 3.0, "3.0"),
    ],
)
def test_a_gradient_keeps_shape_dtype_and_device(function, which):
    identity, v = nn.Sequential(nn.Identity()), leaf(1, 2, 3)
    edit, clip = explainers.replace_gradient(v, function), clip_gradients([v], norm=1)
    for blocks in (
        [edit],
        [clip, explainers.replace_gradient(v, function)],
        [explainers.edit_gradients({(identity, "0"): function})],
    ):
        with ExitStack() as stack, pytest.raises((BadOption, TypeError), match=re.escape(which)):
            for block in blocks:
                stack.enter_context(block)
            identity(v).sum().backward()
        v.grad = None
        v.sum().backward()
        assert is_close(v.grad, [1, 1, 1])


WRONG = [
    (lambda net: clip_gradients(net), "norm=1.0"),
    (lambda net: clip_gradients(net, norm=0), "norm=0.* above 0"),
    (lambda net: clip_gradients(net, value=float("nan")), "value=nan"),
    (lambda net: clip_gradients([torch.ones(2)], norm=1), "requires grad"),
    (lambda net: clip_gradients([net.conv1.weight * 2], norm=1), "not a leaf"),
    (lambda net: clip_gradients([3], norm=1), "optimizer"),
    (lambda net: scale_gradients(net, {"*": float("inf")}), "inf"),
    (lambda net: explainers.add_gradient_noise(net, std=-1), "std=-1"),
    (lambda net: explainers.replace_gradient(torch.ones(2), abs), "requires_grad_"),
    (lambda net: record_gradients(net, statistics=("nrom",)), "'norm'"),
    (lambda net: record_gradients(net, statistics="norm"), "statistics='norm'"),
    (lambda net: record_gradients(net, every=0), "every=0"),
    (lambda net: record_gradients(net, histograms=-1), "histograms=-1"),
    (lambda net: record_gradients(net, limit=0), "limit=0"),
    (lambda net: record_gradients([net.conv1.weight], activations=["conv1"]), "Pass the model"),
    (lambda net: record_gradients(net, activations=["conv9"]), "conv9"),
    (lambda net: record_gradients([]), "requires grad"),
    *(
        (block, r"'cnov1.\*'.*'conv1\.\w+'.*'conv1\.\w+'")
        for block in (
            lambda net: freeze(net, "cnov1.*"),
            lambda net: scale_gradients(net, {"cnov1.*": 2}),
            lambda net: record_gradients(net, patterns="cnov1.*"),
        )
    ),
    (lambda net: freeze(net, net.relu1), "'relu1' has no parameters"),
    (lambda net: freeze(net, nn.ReLU()), "ReLU .* not part of"),
    (lambda net: freeze(net, [3]), "3 is not a layer or a pattern"),
    (lambda net: freeze(net, 3), "pattern=3 .*layer"),
    (lambda net: freeze(net, ""), "matches ''"),
]


def test_wrong_use_is_refused_on_entry():
    net = plain()
    for block, words in WRONG:
        with nothing_left(net), pytest.raises(explainers.ExplainerError, match=words), block(net):
            raise AssertionError(f"entered: {words}")


def test_params_take_every_form_that_an_optimizer_accepts():
    net = small()
    for form in (
        net,
        net.parameters(),
        list(net.named_parameters()),
        dict(net.named_parameters()),
        [{"params": net[0].parameters()}, {"params": list(net[2].parameters())}],
        [*net.parameters(), *net.parameters(), torch.ones(1)],
    ):
        with clip_gradients(form, norm=0.5):
            assert total_norm(gradients_of(net)) == pytest.approx(0.5)
