"""A wrapper that runs a model through a user function: `forward=lambda images: model(images, meta)`.

For models with several inputs, keyword arguments or dict inputs, and for methods such as `model.get_image_features`. To
all passes it is an ordinary module from images to output that shares the model's modules, parameters and buffers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from explainers.dtypes import to_float64
from explainers.errors import BadOption, ExplainerError, UnsupportedModel, is_out_of_memory, shorten
from explainers.hooks.calls import Calls
from explainers.hooks.distributed import refuse_sharded_call
from explainers.hooks.locate import HookPoint, Wrapper, frozen_graph, unwrap
from explainers.nested import list_tensors

Forward = Callable[[Tensor], Any]
"""Maps images [B, C, H, W] to the model's output, for any B and treating all rows alike."""

SAME = 1e-4
"""Relative difference between two outputs of the same images that is attributed to rounding."""


_COMPILED = (
    "The model is compiled, so hooks do not fire when forward= runs it. Pass the model as it was before compilation, "
    "and call that one in forward=."
)


class BatchSizeRefused(UnsupportedModel):
    """Raised if the function only accepts the number of images of the call."""


class ForwardWrapper(Wrapper):
    """The modules, parameters and buffers of a model, run by a function of `count` images, or of any number."""

    runs_own_forward = False
    """Whether the wrapper runs the model's own forward pass, so that it may run a private copy of the model."""
    function: Forward
    count: int
    one_by_one: bool
    has_run: bool
    compared: bool

    def __init__(self, model: nn.Module, function: Forward, count: int) -> None:
        super().__init__(model)
        has_run = frozen_graph(model) is not None
        self.__dict__.update(function=function, count=count, one_by_one=False, has_run=has_run, compared=False)

    @property
    def cache_key(self) -> Any:
        """A cache key for the function that does not keep it alive."""
        return weak_reference(self.function)

    def forward(self, images: Tensor) -> Any:
        """Return the function's output; errors for a different number of images than `count` are reported as such."""
        try:
            return self.function(images) if self.has_run else self._first_run(images)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            ours = isinstance(error, ExplainerError) or is_out_of_memory(error)
            if ours or len(images) == self.count:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise BatchSizeRefused(
                f"forward= failed for a batch of {len(images)} in a call with {self.count}: {reason}. "
                "Methods run variants in batches of any size. If the number is the cause, expand the other model "
                "inputs to len(images) rows, or pass one image at a time."
            ) from error

    def _first_run(self, images: Tensor) -> Any:
        """Run the function, and check that it runs this model.

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
                f"forward= does not run any module of the given {type(self.inner).__name__}: it runs another network, "
                "a copy, or compiled code. Pass a function that runs this model, such as forward=lambda images: "
                "model(images)."
            )
        self.__dict__["has_run"] = True
        return output

    def check_variants(self, images: Tensor) -> None:
        """Check once how variants can run: in any batch size, or one by one if a single image was given.

        Errors   UnsupportedModel if the rows of a batch are not treated alike
        """
        if self.compared:
            return
        self.__dict__["compared"] = True
        with torch.inference_mode(False), torch.no_grad():
            if len(images) > 1:
                clean, reversed_output = self(images.clone()), self(images.flip(0))
                if not _alike(clean, reversed_output, len(images)):
                    raise UnsupportedModel(
                        f"forward= returns different outputs for the same {len(images)} images in a different order: "
                        "another input of the model has one row per image, so variants of one image would be combined "
                        "with the row of another. Pass the images one at a time, each with its own row."
                    )
                return
            try:
                self(images.expand(2, *images.shape[1:]).clone())
            except BatchSizeRefused:
                self.__dict__["one_by_one"] = True


def weak_reference(function: Callable[..., Any]) -> Any:
    """Return a weak reference to a function, or an object that is never found in a cache if there is none."""
    try:
        return weakref.WeakMethod(function) if isinstance(function, MethodType) else weakref.ref(function)
    except TypeError:
        return object()


def wrap_forward(model: nn.Module, forward: Forward | None, images: Tensor) -> nn.Module:
    """Return the model as run by `forward`, or the model itself if `forward` is None.

    Errors   BadOption if `forward` is not a function; WrongType if `model` is not a module
    """
    if forward is None:
        return model
    if not callable(forward) or isinstance(forward, type):
        raise BadOption(
            f"Invalid forward={shorten(forward)}. Pass a function that takes the images [B, C, H, W] and returns the "
            "model's "
            "output, for example forward=lambda images: model(images, meta)."
        )
    # A compiled function runs uncompiled, since hooks do not act in compiled code.
    forward = getattr(forward, "_orig_mod", None) or getattr(forward, "_torchdynamo_orig_callable", None) or forward
    inner = unwrap(model)
    refuse_sharded_call(model, "forward= runs")
    if "_orig_mod" in model._modules:
        raise UnsupportedModel(_COMPILED)
    count = len(images) if isinstance(images, Tensor) and images.ndim else 1
    return ForwardWrapper.of(inner, forward, count)


def refuse_private_view(model: ForwardWrapper) -> None:
    """Raise an error for a model that needs a private copy, since the user's function runs the original.

    Errors   UnsupportedModel
    """
    modules = list(model.inner.modules())
    if any(getattr(module, "training", False) for module in modules):
        reason, remedy = "is in training mode", "Call model.eval() first."
    elif any(m.__dict__.get("_compiled_call_impl") is not None or "_orig_mod" in m._modules for m in modules):
        raise UnsupportedModel(_COMPILED)
    elif any(tensor.is_inference() for tensor in [*model.parameters(), *model.buffers()]):
        reason, remedy = "was created in inference mode", "Create or load it outside torch.inference_mode()."
    else:
        reason, remedy = "has backward hooks", "Remove them first."
    raise UnsupportedModel(f"The model {reason}, and forward= runs the model itself, not a copy. {remedy}")


def _alike(clean: Any, reversed_output: Any, count: int) -> bool:
    """Return whether one output is the other with reversed rows; tensors without a row per image are ignored."""
    for a, b in zip(list_tensors(clean), list_tensors(reversed_output), strict=False):
        if a.ndim and len(a) == count and a.shape == b.shape and a.is_floating_point():
            bound = min(1e-2, max(SAME, 10 * torch.finfo(a.dtype).eps))
            if float(to_float64(a.flip(0) - b).norm()) > bound * float(to_float64(a).norm()):
                return False
    return True
