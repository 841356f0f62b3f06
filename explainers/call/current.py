"""The current call: its view of the model, which nested calls share.

Changing the mode of the user's modules, even temporarily, would disturb a training step in another thread, so a call
runs a view (view.py). A model that has not changed since an earlier call needs no new inspection: one quick pass
compares it with its snapshot (snapshot.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from explainers.call.images import check_channel_count, validate_images
from explainers.call.inputs import Packing, SeveralInputs
from explainers.call.snapshot import snapshots
from explainers.call.view import EvalView, inspect
from explainers.errors import UnsupportedModel, no_module
from explainers.hooks.checkpoints import direct_checkpoints
from explainers.layers.flow.decisions import explain_decision
from explainers.probabilities import no_declared_score

_current: ContextVar[EvalView | None] = ContextVar("eval_view", default=None)
direct_checkpoints.calls.append(_current.get)


def eval_view(model: nn.Module) -> EvalView:
    """Return the view of the model in the current call, or a new one.

    Errors   UnsupportedModel for a scripted or traced model in training mode
    """
    current = _current.get()
    if current is not None and current.given is model:
        return current
    if not isinstance(model, nn.Module):
        raise no_module(model)
    for snapshot in tuple(snapshots.get(model, {}).values()):
        modules = snapshot.modules()
        if modules is not None:  # nothing has changed
            break
    else:
        return inspect(model)
    buffers = None
    if snapshot.writing:
        from explainers.unusual.private_view import watch_clean  # not for most networks

        buffers = watch_clean(model, list(map(modules.__getitem__, snapshot.writing)))
        if buffers is None:
            return inspect(model)
    for here in snapshot.unregistered:
        module = here()
        if module is not None and module.training:
            return inspect(model)
    return EvalView(
        model, model, model, None, snapshot.classes, model, snapshot.ids, tuple(modules), snapshot.quantized,
        snapshot=snapshot, buffers=buffers,
    )  # fmt: skip


@contextmanager
def one_call(model: nn.Module) -> Iterator[EvalView]:
    """Treat the block as one call on the model that shares one view; nested calls share it too.

    Gradients are off by default inside the block, and a caller in inference mode gets ordinary tensors.
    """
    view = eval_view(model)
    if view is _current.get():
        yield view
        return
    runs_directly = view.snapshot is None or view.snapshot.checkpoints is not False
    token, is_complete = _current.set(view), False
    try:
        if runs_directly:
            direct_checkpoints.enter(view)
        with torch.inference_mode(False), torch.no_grad(), view.buffers or nullcontext():
            yield view
        is_complete = True
    except Exception as error:
        _explain(view, error)
        raise
    finally:
        if runs_directly:
            used = direct_checkpoints.leave(view)
            # Code that mentions checkpoints may run them in another call, such as only with gradients.
            if is_complete and view.snapshot is not None and view.snapshot.checkpoints is None:
                view.snapshot.checkpoints = used
        _current.reset(token)


def _explain(view: EvalView, error: Exception) -> None:
    """Raise an error with a better explanation of why the network failed, if there is one."""
    if view.checked is not None:
        check_channel_count(view.network, view.checked, error)
    if "nference tensor" in str(error):  # torch refuses such tensors with several messages
        raise UnsupportedModel(
            f"The forward pass of this {type(view.network).__name__} runs in torch.inference_mode(), so its tensors "
            "have no gradient. Remove inference_mode from it, or use a gradient-free method such as occlusion or rise."
        ) from error
    if view.decides:
        explain_decision(type(view.network).__name__, error)


def check_images(model: nn.Module, images: Tensor) -> None:
    """Check that the images are a finite float batch [N, C, H, W] with the model's device and dtype.

    Videos and volumes are [N, C, T, H, W].

    Errors   WrongType if model is not an nn.Module or images is not a tensor, BadImages otherwise
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    weight = next(model.parameters(), None)
    # Nearly all calls pass this quick test; the complete check says what is wrong with the others, if anything is.
    is_usual = (
        weight is not None
        and isinstance(images, Tensor)
        and (images.ndim, images.dtype, images.device) == (4, weight.dtype, weight.device)
        and images.is_floating_point()
        and images.layout == torch.strided
        and not images.is_meta
        and images.numel() > 0
        and math.isfinite(float(images.sum()))
    )
    if not is_usual:
        validate_images(model, images)
    current = _current.get()
    if current is not None and current.given is model:
        current.checked = images


def packing_of(images: Tensor) -> Packing | None:
    """Return how these images contain several inputs of the network in the current call, or None for ordinary ones."""
    current = _current.get()
    arrange = current.model.arrange if current is not None and isinstance(current.model, SeveralInputs) else None
    return arrange if isinstance(arrange, Packing) and arrange.fits(images) else None


@contextmanager
def outside_call() -> Iterator[None]:
    """Run user code in the block; it may change the model, so the view of the current call is not used there."""
    token = _current.set(None)
    try:
        with no_declared_score():
            yield
    finally:
        _current.reset(token)
