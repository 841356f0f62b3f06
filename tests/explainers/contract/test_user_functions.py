"""Rule-based methods on networks with custom Functions, user hooks and checkpointed segments."""

from __future__ import annotations

import pytest
import torch

import explainers
from explainers import UnsupportedOperation, deep_lift, excitation_backprop, lrp
from tests.explainers.relevance.test_relevance import WithOperation
from tests.support.nets import plain, random_images, residual, settle

pytestmark = pytest.mark.sample

RULES = [deep_lift, lrp, excitation_backprop, explainers.guided_backprop, explainers.deconvnet]
each_rule = pytest.mark.parametrize("method", RULES, ids=lambda m: m.__name__)


def function(name, style):
    """A Function that doubles its input, in torch's older or newer form, or returns it unchanged."""
    forms = {
        "older": {"forward": lambda ctx, x: x * 2, "backward": lambda ctx, g: g * 2},
        "newer": {"forward": lambda x: x * 2, "setup_context": lambda *_: None, "backward": lambda ctx, g: g * 2},
        "identity": {"forward": lambda ctx, x: x.view_as(x), "backward": lambda ctx, g: g},
    }
    return type(name, (torch.autograd.Function,), {key: staticmethod(f) for key, f in forms[style].items()})


FUNCTIONS = {"Swish": "older", "CustomBackward": "newer", "Clone": "identity", "Relu": "older"}


@each_rule
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_custom_function_is_refused_by_its_name(method, name):
    """Also a function named like torch's own nodes or those of the rules."""
    apply = function(name, FUNCTIONS[name]).apply
    for act in (apply, lambda x: x * apply(x)):
        net = settle(WithOperation(lambda x, act=act: act(x).relu()).double())
        for n in (1, 2):
            with pytest.raises(UnsupportedOperation, match=f"'{name}'") as raised:
                method(net, random_images(n), 1)
            assert "saliency" in str(raised.value)
            assert method in RULES[3:] or "in layer 'strange'" in str(raised.value)


def test_a_function_that_the_explained_score_does_not_use_is_accepted():
    def run_beside(module, given):
        function("Beside", "older").apply(given[0])

    net = plain()
    net.register_forward_pre_hook(run_beside)
    for method in RULES:
        torch.testing.assert_close(method(net, random_images(2), 1), method(plain(), random_images(2), 1))


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook", "backward_hook"])
@pytest.mark.parametrize("name", [m.__name__ for m in RULES] + ["saliency", "grad_cam"])
def test_backward_hooks_of_the_user_neither_run_nor_change_a_map(name, kind):
    x, net, seen = random_images(2), residual(), []

    def hook(module, *gradients):
        seen.append(module)
        return tuple(None if g is None else 3 * g for g in gradients[0])

    handles = [getattr(m, f"register_{kind}")(hook) for m in (net.bn1, net.layer1.conv1)]
    method = getattr(explainers, name)
    torch.testing.assert_close(method(net, x, [1, 2]), method(residual(), x, [1, 2]), rtol=0, atol=0)
    assert not seen
    if kind == "full_backward_hook":
        net.layer1.conv1(torch.rand(1, 6, 4, 4, dtype=torch.float64, requires_grad=True)).sum().backward()
        assert seen == [net.layer1.conv1], "the user's own backward pass still runs it"
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("method", [deep_lift, lrp, excitation_backprop], ids=lambda m: m.__name__)
def test_hooks_on_tensors_see_no_relevance(method):
    seen = []

    def watched(x):
        if x.requires_grad:
            x.register_hook(lambda g: seen.append(g) or g * 5).remove()
            x.register_hook(lambda g: seen.append(g) or g * 5)
        return x.relu()

    x = random_images(2)
    expected = method(settle(WithOperation(torch.relu).double()), x, 1)
    torch.testing.assert_close(method(settle(WithOperation(watched).double()), x, 1), expected)
    assert not seen


def test_hooks_for_all_modules_are_refused_with_their_remedy():
    handle = torch.nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        for method in RULES:
            with pytest.raises(UnsupportedOperation, match=r"all modules.*remove\(\)"):
                method(plain(), random_images(1), 1)
    finally:
        handle.remove()
