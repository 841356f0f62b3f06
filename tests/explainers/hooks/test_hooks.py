"""The four kinds of PyTorch hook: what they record and change, other threads, removal."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from explainers import (
    BadOption,
    ExplainerError,
    LayerNotFound,
    LayerRanRepeatedly,
    UnsupportedModel,
    capture,
    edit_gradients,
    edit_inputs,
    edit_outputs,
    input_gradients,
)
from tests.support.nets import Twice, curved, plain, random_images, residual, settle
from tests.support.traces import Marker, graphs_alive, hook_count, nothing_left

BLOCKS = {
    "capture": lambda net: capture(net, "layer2"),
    "capture gradients": lambda net: capture(net, ["layer1", "layer2"], gradients=True),
    "edit_outputs": lambda net: edit_outputs(net, {"layer2": lambda y: y * 2}),
    "edit_inputs": lambda net: edit_inputs(net, {"layer2": lambda x: x * 2}),
    "edit_gradients": lambda net: edit_gradients({(net, "layer2"): lambda g: g * 2}),
    "input_gradients": lambda net: input_gradients(net, "layer2"),
}
each_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)


def backward(net, x):
    x = x.clone().requires_grad_()
    scores = net(x)
    return scores.detach(), torch.autograd.grad(scores[:, 1].sum(), x)[0]


# capture


def test_capture_records_outputs_and_inputs():
    net, x = plain(), random_images()
    with capture(net, ["conv2", "relu2"]) as seen:
        scores = net(x)
    assert torch.equal(seen.outputs["conv2"], net[:3](x))
    assert torch.equal(seen.inputs["conv2"], net[:2](x))
    assert torch.equal(seen.outputs["relu2"], net[:4](x))
    assert torch.equal(scores, net(x)), "watching changes nothing"
    assert set(seen.outputs) == {"conv2", "relu2"}


def test_capture_accepts_a_name_a_list_or_modules():
    net, x = plain(), random_images()
    with capture(net, "conv2") as one, capture(net, [net.conv2, "relu1"]) as two:
        net(x)
    assert torch.equal(one.outputs["conv2"], two.outputs["conv2"])
    assert torch.equal(two.outputs["relu1"], net[:2](x))


def test_capture_is_the_value_before_an_in_place_operation():
    """bn1 is followed by an in-place ReLU; without a clone the record would be the ReLU's output (row P46)."""
    net, x = residual(), random_images()
    with capture(net, "bn1") as seen:
        scores = net(x)
    assert torch.equal(seen.outputs["bn1"], net.bn1(net.conv1(x))) and seen.outputs["bn1"].min() < 0
    assert torch.equal(scores, net(x))


def test_capture_keeps_shape_dtype_and_device_and_is_detached():
    net, x = plain().float(), random_images().float()
    with capture(net, "conv2") as seen:
        net(x.requires_grad_())
    found = seen.outputs["conv2"]
    assert found.dtype == torch.float32 and tuple(found.shape) == (3, 8, 6, 8)
    assert not found.requires_grad and not seen.inputs["conv2"].requires_grad


def test_capture_gradients_equal_autograds():
    net, x = curved(), random_images()
    with capture(net, ["conv1", "act2"], gradients=True) as seen:
        backward(net, x)
    h1 = net[:1](x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(net[1:](h1)[:, 1].sum(), h1)
    torch.testing.assert_close(seen.gradients["conv1"], expected, rtol=1e-12, atol=1e-15)
    h2 = net[:4](x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(net[4:](h2)[:, 1].sum(), h2)
    torch.testing.assert_close(seen.gradients["act2"], expected, rtol=1e-12, atol=1e-15)


def test_capture_gradients_before_an_in_place_operation():
    """The gradient is with respect to the recorded tensor, not the in-place ReLU's output."""
    net, x = residual(), random_images()
    with capture(net, "bn1", gradients=True) as seen:
        scores = net(x)
        scores[:, 1].sum().backward()
    net.zero_grad(set_to_none=True)
    z = net.bn1(net.conv1(x)).detach().requires_grad_()
    y = z.relu()
    y = net.layer2(net.maxpool(net.layer1(y)))
    (expected,) = torch.autograd.grad(net.fc(net.avgpool(y).flatten(1))[:, 1].sum(), z)
    torch.testing.assert_close(seen.gradients["bn1"], expected, rtol=1e-10, atol=1e-14)


def test_capture_gradients_with_every_parameter_frozen_and_a_plain_input():
    net, x = curved().requires_grad_(False), random_images()
    with capture(net, ["conv1", "act2"], gradients=True) as seen:
        net(x)[:, 1].sum().backward()
    assert seen.gradients["conv1"].any() and seen.gradients["act2"].any()
    assert x.grad is None


def test_capture_names_each_call_of_a_reused_module():
    net, x = settle(Twice().double()), random_images()
    with capture(net, ["conv", "relu"]) as seen:
        net(x)
    assert set(seen.outputs) == {"conv#0", "conv#1", "relu#0", "relu#1", "relu#2"}
    a = net.stem(x).relu()
    torch.testing.assert_close(seen.outputs["relu#0"], a)
    torch.testing.assert_close(seen.outputs["conv#0"], net.conv(a))
    torch.testing.assert_close(seen.outputs["conv#1"], net.conv(net.conv(a).relu()[:, :, ::2, ::2]))
    with pytest.raises(LayerRanRepeatedly, match="conv#1"):
        seen.outputs["conv"]


def test_capture_of_a_single_call():
    net, x = settle(Twice().double()), random_images()
    with capture(net, "relu#1") as seen:
        net(x)
    assert list(seen.outputs) == ["relu#1"]
    torch.testing.assert_close(seen.outputs["relu#1"], net.conv(net.stem(x).relu()).relu())


def test_capture_counts_calls_from_zero_in_each_forward():
    net, x = settle(Twice().double()), random_images()
    with capture(net, ["conv"]) as seen:
        net(x * 2)
        net(x)
    assert set(seen.outputs) == {"conv#0", "conv#1"}
    torch.testing.assert_close(seen.outputs["conv#0"], net.conv(net.stem(x).relu()))


def test_capture_after_a_forward_that_failed_counts_from_zero():
    net, x = residual(), random_images()
    net.fuse.light(RuntimeError("lit"), 0)
    with capture(net, "layer1.relu#1") as seen:
        with pytest.raises(RuntimeError, match="lit"):
            net(x)
        net.fuse.dampen()
        net(x)
    torch.testing.assert_close(seen.outputs["layer1.relu#1"], net.layer1(net.relu(net.bn1(net.conv1(x)))))


def test_capture_of_a_layer_that_never_ran_raises():
    net = plain()
    net.spare = nn.Conv2d(1, 1, 1)
    net.forward = lambda x: nn.Sequential.forward(net[:7], x)
    with capture(net, "spare") as seen:
        net(random_images())
    with pytest.raises(LayerNotFound, match="spare"):
        seen.outputs["spare"]


def test_captured_tuples_keep_their_structure():
    net = nn.LSTM(4, 3, batch_first=True)
    wrap = nn.Sequential(net)
    with capture(wrap, "0") as seen:
        wrap(torch.randn(2, 5, 4))
    out, (h, c) = seen.outputs["0"]
    assert out.shape == (2, 5, 3) and h.shape == c.shape == (1, 2, 3) and not out.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_capture_under_no_grad_and_inference_mode(mode):
    net, x = residual(), random_images()
    with mode(), capture(net, "layer1") as seen:
        net(x)
    torch.testing.assert_close(seen.outputs["layer1"], net.layer1(net.relu(net.bn1(net.conv1(x)))).detach())


def test_the_outputs_are_the_items_of_a_capture():
    net, x = residual(), random_images()
    with capture(net, ["layer1", net.layer2, "conv1"]) as seen:
        net(x)
    assert list(seen) == ["conv1", "layer1", "layer2"] == list(seen.outputs) and len(seen) == 3
    for name, module in (("layer1", net.layer1), ("layer2", net.layer2)):
        assert seen[name] is seen[module] is seen[[name]] is seen[f"{name}#0"] is seen.outputs[name]
    assert seen.inputs[net.layer2] is seen.inputs["layer2"]
    assert "layer1" in seen and "layer3" not in seen and seen.get("layer3") is None
    with pytest.raises(
        LayerNotFound, match="Nothing was recorded for layer 'layre1'. Did you mean 'layer1'"
    ) as refusal:
        seen["layre1"]
    assert isinstance(refusal.value, KeyError) and not str(refusal.value).startswith('"')
    with pytest.raises(LayerNotFound, match="not part of this"):
        seen[nn.ReLU()]


def test_unknown_layer_is_refused_with_the_nearest_layer_name():
    with pytest.raises(LayerNotFound, match="layre1.*'layer1'"):
        with capture(residual(), ["conv1", "layre1"]):
            raise AssertionError("never entered")


def test_failed_registration_leaves_no_hook():
    net = residual()
    for make in (
        lambda: capture(net, ["conv1", "layre1"]),
        lambda: edit_outputs(net, {"conv1": abs, "layre1": abs}),
        lambda: edit_inputs(net, {"conv1": abs, "layre1": abs}),
        lambda: edit_gradients({(net, "conv1"): abs, (net, "layre1"): abs}),
        lambda: input_gradients(net, ["conv1", "layre1"]),
    ):
        with nothing_left(net), pytest.raises(LayerNotFound):
            with make():
                raise AssertionError("never entered")


# contracts of all context managers


@each_block
def test_block_has_no_side_effects(block):
    net, x = residual(), random_images()
    with nothing_left(net, x), block(net):
        backward(net, x)


@each_block
def test_block_has_no_side_effects_when_a_later_module_fails(block):
    net, x = residual(), random_images()
    net.fuse.light(RuntimeError("lit"))
    with nothing_left(net, x), pytest.raises(RuntimeError, match="lit"), block(net):
        backward(net, x)


@each_block
def test_block_has_no_side_effects_on_interrupt(block):
    net, x = residual(), random_images()
    with nothing_left(net, x), pytest.raises(KeyboardInterrupt), block(net):
        raise KeyboardInterrupt


@each_block
def test_block_keeps_no_graph(block):
    net, x = residual(), random_images()
    net.pause2 = Marker()
    with block(net) as seen:
        backward(net, x)
        loose = net(x.clone().requires_grad_())  # a graph without a backward pass
        del loose
    assert graphs_alive() == 0
    del seen


@each_block
def test_block_frees_the_model(block):
    net = residual()
    with block(net):
        backward(net, random_images())
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


@each_block
def test_other_threads_are_unaffected(block):
    """Predictions, input gradients and a training step of another thread are bit-equal while the block is open."""
    net, x = residual(), random_images()
    plain_result = backward(net, x)
    net(x)[:, 1].sum().backward()
    plain_step = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad(set_to_none=True)
    found = []

    def other():
        result = backward(net, x)
        net(x)[:, 1].sum().backward()
        found.append((result, {name: p.grad.clone() for name, p in net.named_parameters()}))

    with block(net) as seen:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        if hasattr(seen, "outputs"):
            assert not list(seen.outputs), "nothing of the other thread is recorded"
    ((result, step),) = found
    assert torch.equal(result[0], plain_result[0]) and torch.equal(result[1], plain_result[1])
    assert all(torch.equal(step[name], plain_step[name]) for name in step)


@each_block
@pytest.mark.parametrize("wrap", ["compile", "parallel"])
def test_wrapped_models_are_unwrapped(block, wrap):
    net = residual()
    wrapped = torch.compile(net, backend="eager") if wrap == "compile" else nn.DataParallel(net)
    with nothing_left(net), block(wrapped):
        backward(net, random_images())


@each_block
def test_scripted_and_traced_models_are_refused(block):
    net = residual()
    traced = torch.jit.trace(net, random_images())
    with pytest.raises(UnsupportedModel, match="saliency"), block(traced):
        raise AssertionError("never entered")
    scripted = torch.jit.script(curved())
    with pytest.raises(UnsupportedModel), capture(scripted, "conv2"):
        raise AssertionError("never entered")
    exported = torch.export.export(net, (random_images(),)).module()
    with pytest.raises(UnsupportedModel, match="exported"), block(exported):
        raise AssertionError("never entered")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_capture_in_all_dtypes(dtype):
    net, x = plain().to(dtype), random_images().to(dtype)
    with capture(net, "conv2", gradients=True) as seen:
        backward(net, x)
    assert seen.outputs["conv2"].dtype == seen.gradients["conv2"].dtype == dtype


def test_capture_preserves_channels_last():
    net, x = plain().to(memory_format=torch.channels_last), random_images().to(memory_format=torch.channels_last)
    with capture(net, "conv2") as seen:
        net(x)
    torch.testing.assert_close(seen.outputs["conv2"], plain()[:3](random_images()))


# editing


def test_edit_outputs_replaces_scales_and_zeroes():
    net, x = plain(), random_images()
    with edit_outputs(net, {"relu2": lambda y: y * 0}):
        assert torch.equal(net(x), net.head.bias.expand(3, -1))
    with edit_outputs(net, {"head": lambda y: y * 3}):
        scaled = net(x)
    torch.testing.assert_close(scaled, net(x) * 3)
    with edit_outputs(net, {"relu2": lambda y: None}):
        assert torch.equal(net(x), net(x))


def test_edit_outputs_may_expand_the_batch():
    net, x = plain(), random_images(1)
    with edit_outputs(net, {"relu2": lambda y: y.repeat(4, 1, 1, 1) * torch.arange(4.0).view(-1, 1, 1, 1)}):
        scores = net(x)
    a = net[:4](x)
    torch.testing.assert_close(scores[3:], net[4:](a * 3))
    assert scores.shape[0] == 4


def test_edit_inputs_changes_the_modules_input():
    net, x = plain(), random_images()
    with edit_inputs(net, {"conv2": lambda a: a * 2}):
        changed = net(x)
    torch.testing.assert_close(changed, net[2:](net[:2](x) * 2))
    with edit_inputs(net, {"": lambda a: a * 0}):
        torch.testing.assert_close(net(x), net(x * 0))


def test_edits_of_a_single_call():
    net, x = settle(Twice().double()), random_images()
    net.conv.bias.data.abs_()
    with edit_outputs(net, {"conv#1": lambda y: y * 0}):
        assert torch.equal(net(x), net.fc.bias.expand(3, -1))
    with edit_outputs(net, {"conv#0": lambda y: y * 0}):
        other = net(x)
    assert not torch.equal(other, net.fc.bias.expand(3, -1)) and not torch.equal(other, net(x))


def test_edits_reach_the_gradient():
    net, x = curved(), random_images()
    with edit_outputs(net, {"conv1": lambda y: y * 2}):
        actual = backward(net, x)[1]
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(net[1:](net.conv1(y) * 2)[:, 1].sum(), y)
    torch.testing.assert_close(actual, expected)


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


def test_nested_captures_are_independent():
    net, x = plain(), random_images()
    with capture(net, "conv2") as outer:
        net(x)
        first = outer.outputs["conv2"].clone()
        with capture(net, "conv1") as inner:
            net(x)
        assert set(inner.outputs) == {"conv1"}
    assert torch.equal(outer.outputs["conv2"], first)
    assert hook_count(net) == 0


def test_edit_inputs_of_several_arguments():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a - b

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.sum = Sum()

        def forward(self, x):
            return self.sum(x, x * 2)

    net = Net()
    with edit_inputs(net, {"sum": lambda given: (given[1], given[0])}):
        assert net(torch.ones(1)).item() == 1.0
    assert net(torch.ones(1)).item() == -1.0


# gradients


def test_edit_gradients_of_a_leaf_and_of_a_layer():
    net, x = curved(), random_images()
    _, expected = backward(net, x)
    leaf = x.clone().requires_grad_()
    with edit_gradients({leaf: lambda g: g * 3}):
        (actual,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(actual, expected * 3)
    (after,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(after, expected)
    with edit_gradients({(net, "act2"): lambda g: g * 3}):
        _, actual = backward(net, x)
    torch.testing.assert_close(actual, expected * 3)
    with edit_gradients({(net, "act2"): lambda g: None}):
        assert torch.equal(backward(net, x)[1], expected)


def test_edit_gradients_clips_at_one_layer():
    net, x = curved(), random_images()
    with edit_gradients({(net, "conv1"): lambda g: g.clamp(min=0)}):
        _, actual = backward(net, x)
    h = net.conv1(x).detach().requires_grad_()
    (g,) = torch.autograd.grad(net[1:](h)[:, 1].sum(), h)
    expected = torch.nn.functional.conv_transpose2d(g.clamp(min=0), net.conv1.weight, padding=1)
    torch.testing.assert_close(actual, expected.detach())
    assert (g < 0).any()


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda g: g[:1], "shape"),
        (lambda g: g.float(), "dtype"),
        (lambda g: g.to("meta"), "device"),
        (lambda g: 3.0, "3.0"),
    ],
    ids=["shape", "dtype", "device", "no tensor"],
)
def test_edited_gradient_must_keep_shape_dtype_and_device(edit, word):
    net, x = curved(), random_images()
    with pytest.raises((ExplainerError, TypeError), match=word):
        with edit_gradients({(net, "act2"): edit}):
            backward(net, x)
    backward(net, x)


def test_edit_gradients_of_a_tensor_without_gradient_is_refused():
    with pytest.raises(BadOption, match="requires_grad_"):
        with edit_gradients({torch.ones(2, 3): lambda g: g}):
            raise AssertionError("never entered")


def test_edit_gradients_compose():
    net, x = curved(), random_images()
    _, expected = backward(net, x)
    order = []
    first = lambda g: order.append("first")  # noqa: E731
    second = lambda g: order.append("second")  # noqa: E731
    with edit_gradients({(net, "act2"): first}), edit_gradients({(net, "act2"): second}):
        assert torch.equal(backward(net, x)[1], expected)
    assert order == ["first", "second"]


def test_input_gradients_contain_input_and_output_gradients():
    net, x = curved(), random_images()
    with input_gradients(net, ["conv2"]) as seen:
        backward(net, x)
    h = net[:2](x).detach().requires_grad_()
    y = net.conv2(h)
    g_out, g_in = torch.autograd.grad(net[3:](y)[:, 1].sum(), (y, h))
    torch.testing.assert_close(seen.grad_output["conv2"], g_out)
    torch.testing.assert_close(seen.grad_input["conv2"], g_in)


def test_input_gradients_agree_with_pytorchs_full_backward_hook():
    net, x = curved(), random_images()
    box = {}
    handle = net.act2.register_full_backward_hook(lambda m, gi, go: box.update(gi=gi[0], go=go[0]))
    backward(net, x)
    handle.remove()
    with input_gradients(net, "act2") as seen:
        backward(net, x)
    assert torch.equal(seen.grad_input["act2"], box["gi"]) and torch.equal(seen.grad_output["act2"], box["go"])


def test_input_gradients_of_an_in_place_relu():
    """PyTorch's full backward hook raises an error here."""
    net, x = residual(), random_images()
    with input_gradients(net, ["relu", "layer1.relu"]) as seen:
        backward(net, x)
    assert torch.equal(seen.grad_input["relu"] != 0, (seen.grad_output["relu"] != 0) & (seen.grad_input["relu"] != 0))
    assert set(seen.grad_input) >= {"relu", "layer1.relu#0", "layer1.relu#1"}


def test_input_gradients_exclude_the_skip_connection():
    """The input of `conv1` in a residual block also feeds the skip, whose gradient is excluded."""
    net, x = residual(), random_images()
    with input_gradients(net, "layer2.conv1") as seen:
        backward(net, x)
    expected = torch.nn.functional.conv_transpose2d(
        seen.grad_output["layer2.conv1"], net.layer2.conv1.weight, padding=1
    )
    torch.testing.assert_close(seen.grad_input["layer2.conv1"], expected.detach())


def test_data_parallel_names_have_no_prefix():
    net, x = plain(), random_images()
    with capture(nn.DataParallel(net), "conv2") as seen:
        nn.DataParallel(net)(x)
    assert torch.equal(seen.outputs["conv2"], net[:3](x))


def test_forwards_after_the_block_retain_no_memory():
    net, x = residual(), random_images(1)
    with capture(net, "layer2"):
        net(x)
    net.pause2 = Marker()
    for _ in range(20):
        net(x)
    assert graphs_alive() == 0 and hook_count(net) == 0
