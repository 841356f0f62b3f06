"""The four kinds of PyTorch hook: what they record and change. `test_blocks.py` has what is true of all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import explainers
from explainers import capture, edit_inputs, edit_outputs
from explainers.checks.fixtures import failing
from tests.support.nets import Twice, curved, plain, random_images, residual, settle


def backward(net, x):
    x = x.clone().requires_grad_()
    scores = net(x)
    return scores.detach(), torch.autograd.grad(scores[:, 1].sum(), x)[0]


# capture


def test_capture_names_each_call_of_a_reused_module():
    net, x = settle(Twice().double()), random_images()
    with capture(net, ["conv", "relu"]) as seen, capture(net, "relu#1") as one:
        net(x * 2)
        net(x)  # calls are counted from zero again
    assert set(seen.outputs) == {"conv#0", "conv#1", "relu#0", "relu#1", "relu#2"}
    assert list(one.outputs) == ["relu#1"]
    a = net.stem(x).relu()
    torch.testing.assert_close(seen.outputs["relu#0"], a)
    torch.testing.assert_close(seen.outputs["conv#0"], net.conv(a))
    torch.testing.assert_close(one.outputs["relu#1"], net.conv(a).relu())
    torch.testing.assert_close(seen.outputs["conv#1"], net.conv(net.conv(a).relu()[:, :, ::2, ::2]))
    with pytest.raises(explainers.LayerRanRepeatedly, match="conv#1"):
        seen.outputs["conv"]


def test_capture_after_a_forward_that_failed_counts_from_zero():
    net, x = residual(), random_images()
    with capture(net, "layer1.relu#1") as seen:
        with failing(net, "layer2", RuntimeError("lit")), pytest.raises(RuntimeError, match="lit"):
            net(x)
        net(x)
    torch.testing.assert_close(seen.outputs["layer1.relu#1"], net.layer1(net.relu(net.bn1(net.conv1(x)))))


def test_captured_tuples_keep_their_structure_and_a_layer_that_never_ran_is_refused():
    net = nn.Sequential(nn.LSTM(4, 3, batch_first=True))
    net.spare = nn.Conv2d(1, 1, 1)
    net.forward = lambda x: net[0](x)
    with capture(net, ["0", "spare"]) as seen:
        net(torch.randn(2, 5, 4))
    out, (h, c) = seen.outputs["0"]
    assert out.shape == (2, 5, 3) and h.shape == c.shape == (1, 2, 3) and not out.requires_grad
    with pytest.raises(explainers.LayerNotFound, match="spare"):
        seen.outputs["spare"]


def test_the_outputs_are_the_items_of_a_capture():
    net, x = residual(), random_images()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), capture(net, ["layer1", net.layer2, "conv1"]) as seen:
            net(x)
        torch.testing.assert_close(seen["layer1"], net.layer1(net.relu(net.bn1(net.conv1(x)))).detach())
    assert list(seen) == ["conv1", "layer1", "layer2"] == list(seen.outputs) and len(seen) == 3
    for name, module in (("layer1", net.layer1), ("layer2", net.layer2)):
        assert seen[name] is seen[module] is seen[[name]] is seen[f"{name}#0"] is seen.outputs[name]
    assert seen.inputs[net.layer2] is seen.inputs["layer2"]
    torch.testing.assert_close(seen.inputs["layer2"], net.maxpool(seen["layer1"]))
    assert "layer1" in seen and "layer3" not in seen and seen.get("layer3") is None
    with pytest.raises(explainers.LayerNotFound, match="^Nothing was recorded.*'layre1'.*'layer1'") as refusal:
        seen["layre1"]
    assert isinstance(refusal.value, KeyError)
    with pytest.raises(explainers.LayerNotFound, match="not part of this"):
        seen[nn.ReLU()]
    with pytest.raises(explainers.LayerNotFound, match="conv1#last"), capture(net, "conv1#last"):
        raise AssertionError("never entered")


# editing


def test_edit_outputs_replaces_scales_and_expands():
    net, x = plain(), random_images()
    expected = net(x)
    with edit_outputs(net, {"relu2": lambda y: y * 0}):
        assert torch.equal(net(x), net.head.bias.expand(3, -1))
    with edit_outputs(net, {"head": lambda y: y * 3}):
        torch.testing.assert_close(net(x), expected * 3)
    with edit_outputs(net, {"relu2": lambda y: None}):
        assert torch.equal(net(x), expected)
    with edit_outputs(net, {"relu2": lambda y: y.repeat(4, 1, 1, 1) * torch.arange(4.0).view(-1, 1, 1, 1)}):
        scores = net(x[:1])
    assert scores.shape[0] == 4
    torch.testing.assert_close(scores[3:], net[4:](net[:4](x[:1]) * 3))


def test_edit_inputs_changes_the_modules_input():
    net, x, seen = plain(), random_images(), []
    expected, dark = net(x), net(x * 0)
    with edit_inputs(net, {"conv2": lambda a: a * 2}):
        changed = net(x)
    torch.testing.assert_close(changed, net[2:](net[:2](x) * 2))
    with edit_inputs(net, {"": lambda a: a * 0}):
        assert torch.equal(net(x), dark)
    with edit_inputs(net, {"conv2": seen.append}):
        assert torch.equal(net(x), expected), "it may only look"
    assert len(seen) == 1 and seen[0].shape[1] == 6
    several, one, two = nn.KLDivLoss(reduction="sum"), torch.rand(4), torch.rand(4)
    expected = several(two, one)
    with edit_inputs(several, {"": lambda given: (given[1], given[0])}):
        assert torch.equal(several(one, two), expected) and not torch.equal(one, two)


def test_blocks_compose_in_the_order_of_entry():
    net, x = plain(), random_images()
    with edit_outputs(net, {"relu2": lambda y: y + 1}), edit_outputs(net, {"relu2": lambda y: y * 2}):
        with capture(net, "relu2") as seen:
            net(x)
    torch.testing.assert_close(seen.outputs["relu2"], (net[:4](x) + 1) * 2)
    with edit_inputs(net, {"conv2": lambda y: y + 1}), edit_inputs(net, {"conv2": lambda y: y * 2}):
        with capture(net, "conv2") as seen:
            net(x)
    torch.testing.assert_close(seen.inputs["conv2"], (net[:2](x) + 1) * 2)
    with capture(net, "relu2") as seen, edit_outputs(net, {"relu2": lambda y: y * 0}):
        net(x)
    assert torch.equal(seen.outputs["relu2"], net[:4](x)), "entered first, it sees the value before the edit"


# gradients


def test_edit_gradients_of_a_leaf_and_of_a_layer():
    net, x = curved(), random_images()
    _, expected = backward(net, x)
    leaf = x.clone().requires_grad_()
    with explainers.edit_gradients({leaf: lambda g: g * 3}):
        (actual,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(actual, expected * 3)
    (after,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(after, expected)
    order = []
    first, second = (lambda g, name=name: order.append(name) for name in ("first", "second"))
    with explainers.edit_gradients({(net, "act2"): first}), explainers.edit_gradients({(net, "act2"): second}):
        assert torch.equal(backward(net, x)[1], expected), "None keeps the gradient"
    assert order == ["first", "second"]


def test_edit_gradients_clips_at_one_layer():
    net, x = curved(), random_images()
    with explainers.edit_gradients({(net, "conv1"): lambda g: g.clamp(min=0)}):
        _, actual = backward(net, x)
    h = net.conv1(x).detach().requires_grad_()
    (g,) = torch.autograd.grad(net[1:](h)[:, 1].sum(), h)
    expected = torch.nn.functional.conv_transpose2d(g.clamp(min=0), net.conv1.weight, padding=1)
    torch.testing.assert_close(actual, expected.detach())
    assert (g < 0).any()


def test_input_gradients_are_those_of_pytorchs_full_backward_hook():
    net, x = curved(), random_images()
    box = {}
    handle = net.conv2.register_full_backward_hook(lambda m, gi, go: box.update(gi=gi[0], go=go[0]))
    backward(net, x)
    handle.remove()
    with explainers.input_gradients(net, ["conv2"]) as seen:
        backward(net, x)
    assert torch.equal(seen.grad_input["conv2"], box["gi"]) and torch.equal(seen.grad_output["conv2"], box["go"])


def test_input_gradients_of_an_in_place_relu():
    """PyTorch's full backward hook raises an error here. The gradient passes where the input was positive."""
    net, x = residual(), random_images()
    with explainers.input_gradients(net, ["relu", "layer1.relu"]) as seen:
        backward(net, x)
    active = net.bn1(net.conv1(x)) > 0
    torch.testing.assert_close(seen.grad_input["relu"], seen.grad_output["relu"] * active)
    assert set(seen.grad_input) >= {"relu", "layer1.relu#0", "layer1.relu#1"}


def test_input_gradients_exclude_the_skip_connection():
    """The input of `conv1` in a residual block also feeds the skip, whose gradient is excluded."""
    net, x = residual(), random_images()
    with explainers.input_gradients(net, "layer2.conv1") as seen:
        backward(net, x)
    expected = torch.nn.functional.conv_transpose2d(
        seen.grad_output["layer2.conv1"], net.layer2.conv1.weight, padding=1
    )
    torch.testing.assert_close(seen.grad_input["layer2.conv1"], expected.detach())
