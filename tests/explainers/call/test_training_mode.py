"""Networks in training mode whose modules are not reached by `self`: the map is correct, or the call is refused.

The oracle is the same network in evaluation mode, written without detours.
"""

from __future__ import annotations

import copy
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
from tests.support.nets import random_images, settle
from tests.support.traces import nothing_left

IMAGES = random_images(2).float()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.fc = nn.Linear(4, 3)
        settle(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.run_body(self.stem(x)).mean((2, 3)))

    def run_body(self, x: Tensor) -> Tensor:
        return self.body(x)


Change = Callable[[Any], Any]


def rebind(net: Net, run_body: Callable[[Any, Tensor], Tensor], **attributes: Any) -> None:
    """Let the network run its body through a function of the class, as if it were written there."""
    net.__dict__.update(attributes)
    net.__class__ = type("Net", (Net,), {"run_body": run_body})


def replace(module: nn.Module, make: Callable[[Any], Any]) -> None:
    """Replace a module's forward by a function made of it."""
    module.forward = make(module.forward)


def accelerate_hooks(net: Net) -> None:
    """As `accelerate.hooks.add_hook_to_module`."""
    for module in net.modules():
        module._old_forward = module.forward
        module.forward = functools.partial(lambda module, *args: module._old_forward(*args), module)


def hook_that_saves_features(net: Net) -> None:
    """As in feature extractors: the network reads what one of its hooks has saved, earlier of another batch."""
    net.save = types.MethodType(lambda self, module, inputs, output: setattr(self, "saved", output), net)
    net.body.register_forward_hook(net.save)
    rebind(net, lambda self, x: (self.body(x), self.saved)[1])
    with torch.no_grad():
        net(IMAGES.flip(0))


def user_backward_hooks(net: Net) -> None:
    replace(net.body, lambda old: lambda x: old(x))
    net.body.register_full_backward_hook(lambda module, grad_input, grad_output: (torch.zeros_like(grad_input[0]),))


FOLLOWED: dict[str, Change] = {
    "partial of each forward": lambda net: [replace(module, functools.partial) for module in net.modules()],
    "closure of a layer": lambda net: replace(net.body[1], lambda old: lambda x: old(x)),
    "bound closure": lambda net: replace(net.body, lambda old: types.MethodType(lambda self, x: old(x), net.body)),
    "mode read in a closure": lambda net: replace(
        net.body[3], lambda old: lambda x: functional.dropout(x, 0.5, training=net.training)
    ),
    "hooks of accelerate": accelerate_hooks,
    "nested dicts": lambda net: rebind(
        net, lambda self, x: self.stages["a"]["b"][0](x), stages={"a": {"b": (net.body,)}}
    ),
    "hook that saves features": hook_that_saves_features,
    "backward hooks of the user": user_backward_hooks,
    "compiled layers": lambda net: (
        net.body.compile(backend="eager"), rebind(net, lambda self, x: self.stages[0](x), stages=[net.body])
    ),
    "attribute named like a table of hooks": lambda net: net.__dict__.update(feature_hooks=None, my_hooks=[]),
}  # fmt: skip


@pytest.mark.parametrize("change", FOLLOWED)
def test_modules_that_the_copy_replaces(change: str) -> None:
    """The copy refers to its own modules, so the map is correct."""
    calls = (saliency, saliency, functools.partial(grad_cam, layer="stem"), occlusion)
    expected = [call(Net(), IMAGES, 1) for call in calls]
    for training in (True, False):
        net = Net()
        FOLLOWED[change](net)
        net.train(training)
        # In evaluation mode the network itself runs, and its hook saves features in it.
        saves = "saves" in change and not training
        with nullcontext() if saves else nothing_left(net, IMAGES):
            found = [call(net, IMAGES, 1) for call in calls]
        torch.testing.assert_close(found, expected)


class Holder:
    def __init__(self, module: Callable[[Tensor], Tensor]) -> None:
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x)


GLOBAL: dict[str, Any] = {}


def mode_of_a_global(net: Net) -> None:
    global NETWORK
    NETWORK = net
    net.body[3].forward = lambda x: functional.dropout(x, 0.5, training=NETWORK.training)


NOT_FOLLOWED: dict[str, Change] = {
    "callable object": lambda net: replace(net.body[1], Holder),
    "weak reference": lambda net: rebind(net, lambda self, x: self.weak()(x), weak=weakref.ref(net.body)),
    "global variable": lambda net: replace(
        net.body[1], lambda old: (GLOBAL.update(old=old), lambda x: GLOBAL["old"](x))[1]
    ),
    "mode of a global": mode_of_a_global,
}


@pytest.mark.parametrize("change", NOT_FOLLOWED)
def test_modules_that_the_copy_cannot_replace_are_refused_in_training_mode(change: str) -> None:
    net = Net()
    NOT_FOLLOWED[change](net)
    net.train()
    for call in (saliency, grad_cam, occlusion, lambda *given: default_layer(*given[:2])):
        with nothing_left(net, IMAGES), pytest.raises(UnsupportedModel, match=r"training mode.*eval\(\)"):
            call(net, IMAGES, 1)
    net.eval()
    torch.testing.assert_close(saliency(net, IMAGES, 1), saliency(Net(), IMAGES, 1))
    assert list_layers(net, IMAGES)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("hide", [lambda module: [module], lambda module: [Holder(module)]], ids=["list", "object"])
def test_modules_that_are_not_registered_are_refused_in_training_mode(hide, training) -> None:
    """`model.eval()` does not reach them, so they may train in a network in evaluation mode."""
    net, norm = Net(), nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.5))
    rebind(net, lambda self, x: self.body(self.extra[0](x)), extra=hide(norm))
    net.train(training)
    with nothing_left(net), pytest.raises(UnsupportedModel, match="BatchNorm2d in training mode.*not registered"):
        saliency(net, IMAGES, 1)
    assert int(norm[0].num_batches_tracked) == 0
    norm.eval()
    assert torch.equal(saliency(net, IMAGES, 1), saliency(net.eval(), IMAGES, 1))

    # Activations in a list or created in the forward pass, and modules that do not run, are allowed.
    rebind(net, lambda self, x: nn.Identity()(self.extra[0](self.body(x))), extra=[nn.ReLU()], teacher=[Net().train()])
    torch.testing.assert_close(saliency(net.train(training), IMAGES, 1), saliency(Net(), IMAGES, 1))


def test_scripted_parts_in_training_mode_and_lazy_layers_are_refused() -> None:
    net = Net()
    net.body = torch.jit.script(net.body)
    net.train()
    with nothing_left(net), pytest.raises(UnsupportedModel, match=r"scripted part.*Call model.eval\(\)"):
        saliency(net, IMAGES, 1)
    assert saliency(net.eval(), IMAGES, 1).isfinite().all()

    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3))
    for net in (lazy, copy.deepcopy(lazy).eval()):
        for call in (saliency, list_layers):
            with pytest.raises(UnsupportedModel, match=r"lazy layers .* 0.weight.* initialize .*: model\(im"):
                call(net, IMAGES)
        assert net[0].has_uninitialized_params()
        net(IMAGES)
        assert saliency(net, IMAGES, 1).isfinite().all()


def test_layers_of_a_part_for_several_devices_have_the_same_names_in_both_modes() -> None:
    net = nn.Sequential(nn.DataParallel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())), nn.Flatten(2), nn.Flatten())
    images, maps, names = torch.rand(2, 3, 8, 8), [], []
    for training in (False, True, False):
        net.train(training)
        names.append([layer.name for layer in list_layers(net, images)])
        maps += [grad_cam(net, images, 1, layer=layer) for layer in ("0.module.1", net[0].module[1])]
    assert names[0] == names[1] == names[2] and "0.module.1" in names[0]
    assert all(torch.equal(map, maps[0]) for map in maps)
