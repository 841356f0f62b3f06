"""Rows P88 to P96: one model object, many threads. Sleeps of 2 ms after each stage make the threads interleave."""

from __future__ import annotations

import threading

import pytest
import torch

from explainers import METHODS
from tests.support.calls import NAMES, call
from tests.support.nets import random_images, residual

pytestmark = pytest.mark.sample

TOGETHER = 4
ROUNDS = 3


def together(*works):
    """Run the functions at once, each in its thread; the errors that they raised."""
    gate, errors = threading.Barrier(len(works)), []

    def run(work):
        gate.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return errors


@pytest.mark.parametrize("name", NAMES)
def test_p88_p89_p90_p91_each_call_sees_its_own_forward(name):
    """Four threads with different images and classes share one model: 0 wrong maps, 0 errors."""
    net = residual(seconds=0.002)
    images = [random_images(1, seed=i) for i in range(TOGETHER)]
    expected = [call(name, net, images[i], i) for i in range(TOGETHER)]
    wrong = []

    def work(i):
        for _ in range(ROUNDS):
            found = call(name, net, images[i], i)
            if found.shape != expected[i].shape or not torch.allclose(found, expected[i], rtol=1e-9, atol=1e-12):
                wrong.append(i)

    errors = together(*(lambda i=i: work(i) for i in range(TOGETHER)))
    assert not errors and not wrong
    if METHODS[name].family != "control":  # some of these do not use the image
        assert all(not torch.allclose(expected[0], other) for other in expected[1:]), "the answers must differ"


def others(net, x):
    """What other threads do with the model meanwhile: predict, take a gradient, take a training step's gradients."""
    with torch.no_grad():
        prediction = net(x)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    return prediction, gradient


def undisturbed(name, net, x, use):
    """Whether `use()` gives the same tensors, bit by bit, as often as it runs while another thread explains."""
    expected = use()
    stop, wrong, seen = threading.Event(), [], []

    def explain_on():
        try:
            for _ in range(ROUNDS):
                call(name, net, x, 2)
        finally:
            stop.set()

    def use_on():
        while not stop.is_set() or not seen:
            found = use()
            seen.append(1)
            if not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                wrong.append(1)

    errors = together(explain_on, use_on)
    return not errors and not wrong and bool(seen)


@pytest.mark.parametrize("name", NAMES)
def test_p92_p93_p94_p95_other_threads_are_bit_equal(name):
    net, x = residual(seconds=0.002), random_images(2)

    assert undisturbed(name, net, x, lambda: others(net, x))


@pytest.mark.parametrize("name", NAMES)
def test_p96_a_concurrent_training_step_has_its_own_gradients(name):
    net, x = residual(seconds=0.002), random_images(2)

    def step():
        net.zero_grad(set_to_none=True)
        net(x)[:, 1].sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    assert undisturbed(name, net, x, step)


@pytest.mark.parametrize("name", NAMES)
def test_p96_a_model_that_trains_elsewhere_keeps_its_mode_throughout(name):
    """At no moment may the training thread meet batch norm in eval mode, or an explanation meet it in train mode."""
    net, x = residual(seconds=0.001), random_images(2)
    expected = call(name, net, x, 2)
    net.train()
    net.bn1.momentum = net.layer1.bn1.momentum = net.layer1.bn2.momentum = 0.0
    net.layer2.bn1.momentum = net.layer2.bn2.momentum = 0.0
    with torch.no_grad():
        in_training = net(x)
    stop, wrong = threading.Event(), []

    def explain_on():
        try:
            for _ in range(ROUNDS):
                if not torch.allclose(call(name, net, x, 2), expected, rtol=1e-9, atol=1e-12):
                    wrong.append("map")
        finally:
            stop.set()

    def train():
        while not stop.is_set():
            with torch.no_grad():
                if not torch.equal(net(x), in_training):
                    wrong.append("training forward")

    errors = together(explain_on, train)
    assert not errors and not wrong
    assert all(module.training for module in net.modules())


def test_grad_mode_of_other_threads_is_their_own():
    """The gradient mode is switched inside a call's hook; another thread under no_grad stays there."""
    net, x = residual(seconds=0.002), random_images(1)
    stop, wrong = threading.Event(), []

    def explain_on():
        try:
            for _ in range(5):
                call("grad_cam", net, x, 2)
                if not torch.is_grad_enabled():
                    wrong.append("own")
        finally:
            stop.set()

    def watch():
        with torch.no_grad():
            while not stop.is_set():
                if net(x).requires_grad or torch.is_grad_enabled():
                    wrong.append("other")

    assert not together(explain_on, watch) and not wrong
