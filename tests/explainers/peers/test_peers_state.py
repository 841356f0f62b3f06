"""Rows P01 to P18 of the peers' pitfalls: side effects of a call. No peer is needed; the situation is built here."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading

import pytest
import torch
import torchvision
from torch import nn

import explainers
from explainers import METHODS, ablation_cam, capture, explain, grad_cam, guided_backprop, saliency
from tests.support.calls import CLASSY, NAMES, STOCHASTIC, call
from tests.support.nets import plain, random_images, rel, residual, settle, top
from tests.support.traces import Marker, graphs_alive, hook_count, nothing_left, tensors_alive

pytestmark = pytest.mark.sample

each = pytest.mark.parametrize("name", NAMES)
each_classy = pytest.mark.parametrize("name", CLASSY)


def resnet():
    return settle(torchvision.models.resnet18(weights=None))


def noise_images(n=2, seed=0):
    return torch.randn(n, 3, 64, 96, generator=torch.Generator().manual_seed(seed))


@each
def test_p01_mode_stays_as_it_was(name):
    net, images = residual(), random_images()
    net.train()
    net.bn1.eval()
    before = [module.training for module in net.modules()]
    call(name, net, images)
    net.fuse.light(RuntimeError("lit"))
    with contextlib.suppress(RuntimeError):
        call(name, net, images)
    assert [module.training for module in net.modules()] == before


@each
def test_p02_no_grad_is_written_and_existing_grads_are_kept(name):
    net, images = residual(), random_images()
    net.fc.weight.grad = torch.full_like(net.fc.weight, 7)
    call(name, net, images)
    assert net.fc.weight.grad.eq(7).all()
    assert all(p.grad is None for n, p in net.named_parameters() if n != "fc.weight")


@each
def test_p03_no_hook_remains_between_calls(name):
    net, images = residual(), random_images()
    for _ in range(10):
        call(name, net, images)
    assert hook_count(net) == 0


def test_p03_a_thousand_ordinary_forwards_keep_nothing():
    net, images = residual(), random_images(1)
    for name in NAMES:
        call(name, net, images)
    before = tensors_alive()
    with torch.no_grad():
        for _ in range(1000):
            net(images[:, :, :4, :4])
    assert tensors_alive() == before


# These have a rule for each operation and refuse unknown ones, as the marker is.
RULED = {"deep_lift", "deep_lift_shap", "lrp", "attn_lrp", "cp_lrp"} | {
    "excitation_backprop", "guided_backprop", "deconvnet", "guided_grad_cam",
}  # fmt: skip


@each
def test_p04_results_are_detached_and_keep_no_graph(name):
    net, images = residual(), random_images()
    if name not in RULED:
        net.pause2 = Marker()
    result = call(name, net, images)
    assert result.grad_fn is None and not result.requires_grad and graphs_alive() == 0


def test_p04_gradient_free_methods_build_no_graph():
    class Watch(nn.Module):
        def forward(self, x):
            assert not torch.is_grad_enabled() and not x.requires_grad
            return x

    net, images = residual(), random_images()
    net.pause2 = Watch()
    for name in ("occlusion", "ablation_cam", "channel_effects", "feature_maps"):
        call(name, net, images)


def test_p05_dropped_output_of_an_ordinary_forward_leaves_no_graph():
    net, images = residual(), random_images()
    net.pause2 = Marker()
    for name in set(NAMES) - RULED:
        call(name, net, images)
    output = net(images)
    del output
    assert graphs_alive() == 0


@each
@pytest.mark.parametrize("error", [None, IndexError("in the model"), KeyboardInterrupt()])
def test_p06_hooks_are_gone_after_success_error_and_interrupt(name, error):
    net, images = residual(), random_images()
    if error is not None:
        net.fuse.light(error)
    try:
        call(name, net, images)
    except (IndexError, KeyboardInterrupt) as raised:
        assert raised is error
    assert hook_count(net) == 0
    assert hook_count(copy.deepcopy(net)) == 0


@each_classy
def test_p07_class_out_of_range_reaches_the_caller_with_the_count(name):
    with pytest.raises(ValueError, match="5000.*7"):
        call(name, residual(), random_images(), 5000)


def test_p07_no_context_manager_swallows_an_exception():
    net = residual()
    with pytest.raises(IndexError), capture(net, "layer2"):
        raise IndexError("out of range")


@each
def test_p08_callers_tensor_keeps_flag_grad_and_values_after_errors(name):
    net, images = residual(), random_images()
    kept = images.clone()
    net.fuse.light(RuntimeError("lit"))
    try:
        call(name, net, images)
    except RuntimeError:
        pass
    assert not images.requires_grad and images.grad is None and torch.equal(images, kept) and images._version == 0


@each
def test_p09_p10_module_attributes_are_identical(name):
    net, images = residual(), random_images()
    with nothing_left(net, images):
        call(name, net, images)
        try:
            call(name, net, images, 5000)
        except ValueError:
            pass
    before = tensors_alive()
    call(name, net, images)
    assert tensors_alive() == before


def test_p11_guided_backprop_keeps_the_users_modules_and_repeats():
    net, images = residual(), random_images()
    relus = [id(net.relu), id(net.layer1.relu), id(net.layer2.relu)]
    assert len(set(relus)) == 3
    with nothing_left(net, images):
        first = guided_backprop(net, images)
        second = guided_backprop(net, images)
    assert [id(net.relu), id(net.layer1.relu), id(net.layer2.relu)] == relus and net.relu.inplace
    assert torch.equal(first, second)


@each
def test_p12_ordinary_backward_is_bit_equal_after_any_failure(name):
    net, images = residual(), random_images()
    expected = saliency(net, images, 1)

    def ordinary():
        x = images.clone().requires_grad_()
        return torch.autograd.grad(net(x)[:, 1].sum(), x)[0]

    before = ordinary()
    for target in (5000, lambda scores: 1 / 0):
        try:
            call(name, net, images, target)
        except (ValueError, ZeroDivisionError):
            pass
    assert torch.equal(ordinary(), before) and torch.equal(saliency(net, images, 1), expected)
    assert type(net.relu) is nn.ReLU


@pytest.mark.parametrize("name", ["ablation_cam", "channel_effects"])
def test_p13_prediction_is_bit_equal_after_a_failing_target(name):
    net, images = residual(), random_images()
    before = net(images)
    calls = []

    def target(scores):
        calls.append(1)
        if len(calls) > 1:
            raise IndexError("in the target")
        return scores[:, 0]

    with pytest.raises(IndexError, match="in the target"):
        call(name, net, images, target)
    after = net(images)
    assert after.shape == before.shape and torch.equal(after, before)


def test_p14_two_models_at_once_share_no_state():
    """Different models in two threads, started together, twelve times each."""
    nets = [residual(seconds=0.001), residual(classes=4, seconds=0.001)]
    images = random_images(2)
    expected = [ablation_cam(net, images, 1) for net in nets]
    wrong, gate = [], threading.Barrier(2)

    def work(i):
        gate.wait()
        for _ in range(12):
            if not torch.equal(ablation_cam(nets[i], images, 1), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


@each
def test_p15_train_mode_moves_no_running_statistic_and_explains_eval(name):
    net, images = residual(), random_images()
    expected = call(name, net, images)
    net.train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    actual = call(name, net, images)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", STOCHASTIC)
def test_p16_global_generators_are_untouched_and_the_seed_determines_the_map(name):
    import random

    import numpy

    net, images = residual(), random_images()
    states = torch.get_rng_state(), str(numpy.random.get_state()), random.getstate()
    first = call(name, net, images, seed=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(numpy.random.get_state()) == states[1] and random.getstate() == states[2]
    numpy.random.seed(9)
    torch.manual_seed(9)
    assert torch.equal(call(name, net, images, seed=1), first)


@each
def test_p17_results_convert_to_numpy(name):
    assert call(name, residual(), random_images()).numpy().shape


def test_p17_explanations_are_detached():
    e = explain("grad_cam", residual(), random_images())
    assert not any(tensor.requires_grad for tensor in (e.map, e.raw, e.scores))


@each
def test_p18_no_object_is_kept_alive_and_no_hook_remains_while_results_are_held(name):
    net, images = residual(), random_images()
    kept = [call(name, net, images) for _ in range(3)]
    assert hook_count(net) == 0
    gc.collect()
    assert len(kept) == 3


def test_state_rows_hold_on_a_resnet():
    """One run of P01, P02, P06, P15 on the network of the rows."""
    net, x = resnet(), noise_images()
    net.train()
    with nothing_left(net, x):
        first = grad_cam(net, x)
        guided_backprop(net, x)
        with pytest.raises(ValueError):
            grad_cam(net, x, 5000)
    assert rel(grad_cam(net.eval(), x), first) < 1e-6
    assert top(net, x) == explain("grad_cam", net, x).target


def test_registry_functions_are_the_public_ones():
    assert all(hasattr(explainers, name) for name in METHODS)
    assert plain() is not None
