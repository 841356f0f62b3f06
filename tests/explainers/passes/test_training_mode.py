"""Networks in training mode whose modules are not reached by `self`: the map is correct, or the call is refused.

The oracle is the same network in evaluation mode, written without detours.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers import UnsupportedModel, default_layer, grad_cam, list_layers, occlusion, saliency
from tests.support.nets import settle
from tests.support.traces import nothing_left


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.run_body(self.stem(x)).mean((2, 3)))

    def run_body(self, x: Tensor) -> Tensor:
        return self.body(x)


def images() -> Tensor:
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def rebind(net: Net, run_body: Callable[[Net, Tensor], Tensor]) -> None:
    """Let the network run its body through a function of the class, as if it were written there."""
    net.__class__ = type("Net", (Net,), {"run_body": run_body})


# Followed: the copy refers to its own modules, so the map is correct.


def partial_of_each_forward(net: Net) -> None:
    for module in net.modules():
        module.forward = functools.partial(module.forward)


def closure_of_a_layer(net: Net) -> None:
    old = net.body[1].forward
    net.body[1].forward = lambda x: old(x)


def bound_closure(net: Net) -> None:
    old = net.body.forward
    net.body.forward = types.MethodType(lambda self, x: old(x), net.body)


def mode_read_in_a_closure(net: Net) -> None:
    net.body[3].forward = lambda x: functional.dropout(x, 0.5, training=net.training)


def accelerate_hooks(net: Net) -> None:
    """As `accelerate.hooks.add_hook_to_module`."""

    class Hook:
        def pre_forward(self, module: nn.Module, *args: Any) -> Any:
            return args

    def new_forward(module: Any, *args: Any, **keywords: Any) -> Any:
        return module._old_forward(*module._hf_hook.pre_forward(module, *args), **keywords)

    for module in net.modules():
        module._hf_hook, module._old_forward = Hook(), module.forward
        module.forward = functools.update_wrapper(functools.partial(new_forward, module), module.forward)


def stages_in_nested_dicts(net: Net) -> None:
    net.stages = {"a": {"b": (net.body,)}}
    rebind(net, lambda self, x: self.stages["a"]["b"][0](x))


def hook_that_saves_features(net: Net) -> None:
    """As in feature extractors: the network reads what one of its hooks has saved."""
    net.save = types.MethodType(lambda self, module, inputs, output: setattr(self, "saved", output), net)
    net.body.register_forward_hook(net.save)

    def run_body(self: Any, x: Tensor) -> Tensor:
        self.body(x)
        return self.saved

    rebind(net, run_body)
    with torch.no_grad():
        net.eval()(images().flip(0))  # another batch was saved earlier


def user_backward_hooks(net: Net) -> None:
    old = net.body.forward
    net.body.forward = lambda x: old(x)
    net.body.register_full_backward_hook(lambda module, grad_input, grad_output: (torch.zeros_like(grad_input[0]),))


def compiled_layers(net: Net) -> None:
    net.stages = [net.body]
    net.body.compile(backend="eager")
    rebind(net, lambda self, x: self.stages[0](x))


FOLLOWED = (
    partial_of_each_forward,
    closure_of_a_layer,
    bound_closure,
    mode_read_in_a_closure,
    accelerate_hooks,
    stages_in_nested_dicts,
    hook_that_saves_features,
    user_backward_hooks,
    compiled_layers,
)


@pytest.mark.parametrize("change", FOLLOWED)
def test_modules_that_the_copy_replaces(change):
    plain = settle(Net()).float().eval()
    x, calls = images(), (saliency, saliency, functools.partial(grad_cam, layer="stem"), occlusion)
    expected = [call(plain, x, 1) for call in calls]
    for training in (True, False):
        net = copy.deepcopy(plain)
        change(net)
        net.train(training)
        # In evaluation mode the network itself runs, and its hook saves features in it.
        unchanged = nullcontext() if change is hook_that_saves_features and not training else nothing_left(net, x)
        with unchanged:
            found = [call(net, x, 1) for call in calls]
        torch.testing.assert_close(found, expected)


# Not followed: refused while in training mode, before anything has changed.


@dataclasses.dataclass
class Holder:
    module: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x)


def callable_object(net: Net) -> None:
    net.body[1].forward = Holder(net.body[1].forward)


def weak_reference(net: Net) -> None:
    net.weak = weakref.ref(net.body)
    rebind(net, lambda self, x: self.weak()(x))


GLOBAL: list[Any] = []


def global_variable(net: Net) -> None:
    GLOBAL[:] = [net.body[1].forward]
    net.body[1].forward = lambda x: GLOBAL[0](x)


def mode_of_a_global(net: Net) -> None:
    global NETWORK
    NETWORK = net
    net.body[3].forward = lambda x: functional.dropout(x, 0.5, training=NETWORK.training)


@pytest.mark.parametrize("change", [callable_object, weak_reference, global_variable, mode_of_a_global])
def test_modules_that_the_copy_cannot_replace(change):
    plain = settle(Net()).float().eval()
    net = copy.deepcopy(plain)
    change(net)
    net.train()
    x = images()

    for call in (saliency, grad_cam, occlusion, lambda *given: default_layer(*given[:2])):
        with nothing_left(net, x), pytest.raises(UnsupportedModel, match=r"training mode.*eval\(\)"):
            call(net, x, 1)

    net.eval()
    torch.testing.assert_close(saliency(net, x, 1), saliency(plain, x, 1))
    assert list_layers(net, x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("hide", [lambda module: [module], lambda module: [Holder(module)]], ids=["list", "object"])
def test_modules_that_are_not_registered_are_refused_in_training_mode(hide, training):
    """`model.eval()` does not reach them, so they may train in a network in evaluation mode."""
    net, norm = settle(Net()).float(), nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.5))
    net.extra = hide(norm)
    rebind(net, lambda self, x: self.body(self.extra[0](x)))
    net.train(training)
    x = images()

    with nothing_left(net, x), pytest.raises(UnsupportedModel, match="BatchNorm2d in training mode.*not registered"):
        saliency(net, x, 1)
    assert int(norm[0].num_batches_tracked) == 0

    norm.eval()
    assert torch.equal(saliency(net, x, 1), saliency(net.eval(), x, 1))


def test_unregistered_modules_whose_mode_does_not_matter_are_allowed():
    """Such as activations that are kept in a list or created in the forward pass, and modules that do not run."""
    plain = settle(Net()).float().eval()
    net = copy.deepcopy(plain)
    net.extra, net.teacher = [nn.ReLU()], [Net()]
    rebind(net, lambda self, x: nn.Identity()(self.extra[0](self.body(x))))

    for training in (True, False):
        torch.testing.assert_close(saliency(net.train(training), images(), 1), saliency(plain, images(), 1))


def test_a_scripted_part_in_training_mode_is_refused():
    net = settle(Net()).float()
    net.body = torch.jit.script(net.body)
    net.train()
    with nothing_left(net), pytest.raises(UnsupportedModel, match=r"scripted part.*Call model.eval\(\)"):
        saliency(net, images(), 1)
    assert saliency(net.eval(), images(), 1).isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_lazy_layers_are_named_and_not_initialized(training):
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3))
    net.train(training)
    for call in (lambda: saliency(net, images(), 1), lambda: list_layers(net, images())):
        with pytest.raises(UnsupportedModel, match=r"lazy layers .* 0.weight.*initialize its lazy layers: model\(im"):
            call()
    assert net[0].has_uninitialized_params()

    net(images())
    assert saliency(net, images(), 1).isfinite().all()
