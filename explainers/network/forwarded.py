"""A model that runs by a function of the caller's: `forward=lambda images: model(images, meta)`.

For models with several inputs, keywords or a dict, and for a method of theirs such as `model.get_image_features`. All
passes meet an ordinary module from images to output, whose modules, parameters and buffers are the model's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, ExplainerError, UnsupportedModel, is_out_of_memory
from explainers.hooks.calls import Calls
from explainers.hooks.locate import HookPoint, frozen_graph, unwrap
from explainers.hooks.records import map_tensors

Forward = Callable[[Tensor], Any]
"""Receives images [B, C, H, W], for any B and all rows alike, and returns the model's output for them."""

SAME = 1e-4
"""Relative difference between two outputs of the same images that rounding may cause."""


_COMPILED = (
    "The model is compiled, and forward= runs it as it is, where hooks do not fire. Give the model before it is "
    "compiled, and let forward= call that one."
)


class OtherBatchRefused(UnsupportedModel):
    """The function takes no other number of images than that of the call."""


class Forwarded(nn.Module):
    """The model's own modules, parameters and buffers, run by a function of `count` images, or of any number."""

    stands_for_inner = True
    inner: nn.Module
    function: Forward
    count: int
    one_by_one: bool
    has_run: bool
    compared: bool

    def __init__(self, model: nn.Module, function: Forward, count: int) -> None:
        super().__init__()
        own = self.__dict__
        if frozen_graph(model) is None:
            own.update(_modules=model._modules, _parameters=model._parameters, _buffers=model._buffers)
        else:
            self._modules["model"] = model  # compiled code keeps its tables elsewhere; no hook is set in it
        own.update(inner=model, function=function, count=count, training=model.training)
        own.update(one_by_one=False, has_run=frozen_graph(model) is not None, compared=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["inner"], name)

    @property
    def way(self) -> Any:
        """Stands for the function in a table that outlives the call, and does not keep it alive."""
        function = self.function
        try:
            return weakref.WeakMethod(function) if isinstance(function, MethodType) else weakref.ref(function)
        except TypeError:
            return object()  # it takes no weak reference: nothing is found again

    def forward(self, images: Tensor) -> Any:
        """The function's output; an error for another number of images than `count` is told as such."""
        try:
            return self.function(images) if self.has_run else self._first_run(images)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            ours = isinstance(error, ExplainerError) or is_out_of_memory(error)
            if ours or len(images) == self.count:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise OtherBatchRefused(
                f"forward= takes {self.count} image{'s' * (self.count > 1)} and not {len(images)}: {reason}. Methods "
                "run variants in batches of any size: expand what else the model needs to len(images) rows, or give "
                "one image at a time."
            ) from error

    def _first_run(self, images: Tensor) -> Any:
        """Run, and see whether it is this model that runs.

        Errors   BadOption
        """
        ran: list[str] = []
        with ExitStack() as stack:
            calls = Calls(self, stack)
            for name, module in self.inner.named_modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    calls.before(stack, HookPoint(name, module), lambda k, inputs, name=name: ran.append(name))  # type: ignore[misc]
            output = self.function(images)
        if not ran and any(True for _ in self.inner.children()):
            raise BadOption(
                f"forward= ran, but no module of the given {type(self.inner).__name__} did: it runs another network, a "
                "copy of it, or compiled code. Give a function that runs this very model: forward=lambda images: "
                "model(images)."
            )
        self.__dict__["has_run"] = True
        return output

    def check_variants(self, images: Tensor) -> None:
        """Learn, once, how variants of the images can run: in any batch, or one by one where one image was given.

        Errors   UnsupportedModel where the rows of a batch are not treated alike
        """
        if self.compared:
            return
        self.__dict__["compared"] = True
        with torch.inference_mode(False), torch.no_grad():
            if len(images) > 1:
                clean, turned = self(images.clone()), self(images.flip(0))
                if not _alike(clean, turned, len(images)):
                    raise UnsupportedModel(
                        f"forward= gives other outputs for the same {len(images)} images in another order: an input of "
                        "the model has one row for each image, and variants of one image would meet another's. Give "
                        "the images one at a time, each with its own row."
                    )
                return
            try:
                self(images.expand(2, -1, -1, -1).clone())
            except OtherBatchRefused:
                self.__dict__["one_by_one"] = True


def forwarded(model: nn.Module, forward: Forward | None, images: Tensor) -> nn.Module:
    """The model as `forward` runs it; the model itself where that is None.

    Errors   BadOption for what is no function; TypeError for a model that is none
    """
    if forward is None:
        return model
    if not callable(forward) or isinstance(forward, type):
        raise BadOption(
            f"forward={forward!r} is not possible. Give a function that takes the images [B, C, H, W] and returns the "
            "model's output, for example forward=lambda images: model(images, meta)."
        )
    inner = unwrap(model)
    if "_orig_mod" in model._modules:
        raise UnsupportedModel(_COMPILED)
    count = len(images) if isinstance(images, Tensor) and images.ndim else 1
    return _kind(type(inner).__name__)(inner, forward, count)


def refuse_private_view(model: Forwarded) -> None:
    """Refuse a model that could only be explained as a private copy, which the caller's function does not run.

    Errors   UnsupportedModel
    """
    modules = list(model.inner.modules())
    if any(module.training for module in modules):
        reason, remedy = "is in training mode", "Call model.eval() first."
    elif any(m.__dict__.get("_compiled_call_impl") is not None or "_orig_mod" in m._modules for m in modules):
        raise UnsupportedModel(_COMPILED)
    elif any(tensor.is_inference() for tensor in [*model.parameters(), *model.buffers()]):
        reason, remedy = "was made in inference mode", "Make or load the model outside torch.inference_mode()."
    else:
        reason, remedy = "has backward hooks", "Remove them for the explanation."
    raise UnsupportedModel(f"The model {reason}, and forward= runs it as it is, not a copy. {remedy}")


@lru_cache(maxsize=64)
def _kind(name: str) -> type[Forwarded]:
    """The class under the model's own name, which sentences then give."""
    return type(name, (Forwarded,), {})


def _alike(clean: Any, turned: Any, count: int) -> bool:
    """Whether one output is the other with its rows turned round; what has no row for each image is not compared."""
    pairs: list[list[Tensor]] = [[], []]
    for output, found in zip((clean, turned), pairs, strict=True):
        map_tensors(output, found.append)
    for a, b in zip(*pairs, strict=False):
        if a.ndim and len(a) == count and a.shape == b.shape and a.is_floating_point():
            bound = min(1e-2, max(SAME, 10 * torch.finfo(a.dtype).eps))
            if float((a.flip(0) - b).double().norm()) > bound * float(a.double().norm()):
                return False
    return True
