"""The network that a call runs: unwrapped, in evaluation mode and uncompiled, without touching the user's modules.

A model whose modules are all uncompiled, in evaluation mode and without backward hooks is used directly. Otherwise its
module tree is copied shallowly, and the copy is refused if it runs modules of the original (`unusual`). The user's
backward hooks are not copied, since they are meant for training steps and would see or change the gradients of an
explanation. Changing the mode of the user's modules, even temporarily, would disturb a training step in another thread.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from explainers.call.forward_wrapper import ForwardWrapper, refuse_private_view
from explainers.call.inputs import SeveralInputs
from explainers.call.snapshot import Snapshot, take_snapshot
from explainers.dtypes import quantized_class
from explainers.errors import UnsupportedModel, no_module
from explainers.hooks.checkpoints import may_checkpoint
from explainers.hooks.distributed import is_gathered, runs_distributed
from explainers.hooks.locate import frozen_graph, unwrap
from explainers.placement import Placements
from explainers.probe.modules import find_unregistered, may_write

if TYPE_CHECKING:
    from explainers.unusual.buffers import GuardedBuffers, WatchedBuffers


@dataclass(eq=False)
class EvalView:
    """The view of a model during one call; the module tree is inspected only once.

    `model` is the user's network inside its wrappers (if it is sharded, a copy with full parameters), `network` the
    network that runs, `kind` the kind of frozen graph or None. `listed` are the modules of the user's network; `owner`
    and `modules`, their ids, are the cache keys for information that outlives the call. `classes` are those of all
    modules, `quantized` is the name of one without a backward pass, or None. `snapshot` has what earlier calls have
    concluded from the modules as they are; it is None if they are not known to be unchanged. `checked` are the images
    that passed validation, `known` what was looked up (layers, settings), `graphs` the graphs of the images' passes if
    the call reuses them, else None. `buffers` restores those that the network writes. `placement` is where the cells of
    the method's layer lie, None if they cover the input evenly. `decides` is True if the network reads values of its
    image, so that another image may run other operations; it is known after `run_rows_correctly`. `is_row_by_row` is
    True if the network runs one row at a time. `splits` is True if the call can run such images one by one. `failed`
    has a mask [N] of the images whose score is not finite, once the method has computed scores.
    """

    given: nn.Module
    model: nn.Module
    network: nn.Module
    kind: str | None
    classes: frozenset[type[nn.Module]]
    owner: nn.Module
    modules: tuple[Any, ...]
    listed: tuple[nn.Module, ...] = field(repr=False)
    quantized: str | None = None
    is_gathered: bool = False
    snapshot: Snapshot | None = field(default=None, repr=False)
    checked: Tensor | None = field(default=None, repr=False)
    known: dict[Any, Any] = field(default_factory=dict, repr=False)
    graphs: dict[Any, Any] | None = field(default=None, repr=False)
    placement: Placements = field(default=None, repr=False)
    buffers: WatchedBuffers | GuardedBuffers | None = field(default=None, repr=False)
    decides: bool = False
    is_row_by_row: bool = False
    splits: bool = False
    failed: list[Tensor] = field(default_factory=list, repr=False)


def inspect(given: nn.Module) -> EvalView:
    """Return a new view of a model.

    Errors   WrongType, UnsupportedModel
    """
    model = unwrap(given)
    if _only_contains_network(model):
        raise no_module(model)
    try:
        is_sharded = runs_distributed() and is_gathered(given)
        return _inspect_sharded(given) if is_sharded else _inspect_modules(given, model)
    except ValueError:  # what torch raises for any use of an uninitialized parameter
        _refuse_lazy(model)
        raise


def _inspect_sharded(given: nn.Module) -> EvalView:
    """Return the view of a copy with full parameters. What outlives the call is kept for the sharded model."""
    from explainers.unusual.private_view import gathered_view  # only for sharded models

    listed = tuple(given.modules())
    full, network, buffers = gathered_view(given)
    return replace(
        _inspect_modules(given, full), network=network, owner=given, modules=tuple(map(id, listed)), listed=listed,
        is_gathered=True, snapshot=None, buffers=buffers,
    )  # fmt: skip


def _inspect_modules(given: nn.Module, model: nn.Module) -> EvalView:
    own = model.inner if isinstance(model, ForwardWrapper) else model
    kind = frozen_graph(model)
    if kind is not None and kind != "exported" and getattr(model, "training", False):
        raise UnsupportedModel(
            f"The {kind} model is in training mode, which cannot be changed for one call. Call model.eval() first."
        )
    usable = True
    runs_itself = not isinstance(model, ForwardWrapper) or model.runs_own_forward
    modules: list[nn.Module] = [own if runs_itself else model]
    seen = {id(model)}
    for module in modules:  # grows during iteration; reads only the tables, since small networks wait for this loop
        table = module.__dict__
        if kind is None and "_modules" in table:
            children = table["_modules"]
            if usable and (getattr(module, "training", False) or table.get("_compiled_call_impl") is not None):
                usable = False
            if "forward" in table and hasattr(table["forward"], "_torchdynamo_orig_callable"):
                usable = False
            if table.get("_backward_hooks") or table.get("_backward_pre_hooks"):
                usable = False
            for tensors in (table["_parameters"], table["_buffers"]):
                if tensors and usable:
                    for tensor in tensors.values():
                        if tensor is not None and tensor.is_inference():
                            usable = False
        else:
            children = module._modules  # scripted modules store their children elsewhere
            usable = usable and not (kind is None and getattr(module, "training", False))
        if children:
            usable = usable and "_orig_mod" not in children  # a compiled module
            for child in children.values():
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    modules.append(child)
    ids = (model.cache_key if isinstance(model, ForwardWrapper) else id(model), *map(id, modules[1:]))
    network = modules[0]
    every = (own, *modules[1:])
    unregistered = find_unregistered(own) if usable and kind is None else []
    writing = [module for module in every if may_write(module)]
    buffers: WatchedBuffers | GuardedBuffers | None = None
    is_run_by_user = isinstance(model, ForwardWrapper) and not runs_itself
    is_private = not usable or any(module.training for module in unregistered)
    if is_run_by_user and not usable:
        refuse_private_view(model)  # type: ignore[arg-type]
    if is_private or writing:
        from explainers.unusual.private_view import guard_buffers, private_view, watch_clean  # not for most networks

        if is_run_by_user:
            buffers = guard_buffers(own, writing, model, {})
        elif is_private:
            network, buffers = private_view(own, writing)
        elif (buffers := watch_clean(own, writing)) is None:
            network, buffers = private_view(own, writing, is_frozen=kind == "exported", is_checked=False)
    classes = frozenset(map(type, modules))
    quantized = quantized_class(classes)
    snapshot = None
    if network is model and kind is None:
        snapshot = take_snapshot(
            model,
            modules,
            classes=classes,
            ids=ids,
            quantized=quantized,
            writing=[index for index, module in enumerate(modules) if may_write(module)],
            unregistered=[weakref.ref(module) for module in unregistered],
            checkpoints=True if isinstance(model, ForwardWrapper) or may_checkpoint(classes) else None,
        )
    if isinstance(model, SeveralInputs) and runs_itself:
        network = model.around(network)
    return EvalView(
        given, model, network, kind, classes, own, ids, every, quantized, snapshot=snapshot, buffers=buffers
    )


def _only_contains_network(model: nn.Module) -> bool:
    """Return whether a module has no forward pass, or one that takes files and returns result objects (YOLO)."""
    kind = type(model)
    if getattr(kind, "forward", None) is nn.Module.forward and "forward" not in vars(model):
        return True
    is_replaced = kind.__call__ is not nn.Module.__call__ and not kind.__module__.startswith("torch.")
    return is_replaced and hasattr(kind, "predict") and isinstance(getattr(model, "model", None), nn.Module)


def _refuse_lazy(model: nn.Module) -> None:
    """Raise an error that names the uninitialized parameters of a model, if it has any.

    Errors   UnsupportedModel
    """
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        more = f" and {len(lazy) - 3} more" if len(lazy) > 3 else ""
        raise UnsupportedModel(
            f"{type(model).__name__} has lazy layers whose parameters are not initialized: {', '.join(lazy[:3])}{more}."
            " Run the model once to initialize its lazy layers: model(images)."
        ) from None
