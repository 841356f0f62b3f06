"""Edit outputs, inputs and gradients with forward, pre-forward and tensor hooks that are always removed.

All functions in this package guarantee the following:

    thread    only forward passes of the thread that entered the block are affected
    call      the calls of a module that runs several times are named `name#0`, `name#1`, in order
    clone     the network receives a clone of the recorded tensor, so later in-place operations do not change the record
    removal   every hook is removed after the block, even if registration or the block fails

Each forward pass of the model restarts the count; records are those of its latest forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from explainers.errors import BadOption, WrongType, shorten, wrong_type
from explainers.hooks.calls import Calls, Edit, replaced_outputs
from explainers.hooks.checkpoints import run_checkpoints_directly
from explainers.hooks.distributed import reducing_wrapper, refuse_sharded, runs_distributed
from explainers.hooks.gradient_queue import GradientEdit, GradientQueue, JointEdit, Watch, queue_of_this_thread
from explainers.hooks.locate import find_hook_point, unwrap_for_hooks
from explainers.options import LayerName

Observer = Callable[[str, int | None, Tensor, Tensor], None]
"""Receives the name, the call, the gradient, and the gradient before any hook (the same object if no hook acted)."""


def _items(edits: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a mapping of edits.

    Errors   WrongType
    """
    if not isinstance(edits, Mapping):
        raise WrongType(f"edits={shorten(edits)} is not a mapping. Give {{layer: function}}.")
    return list(edits.items())


@contextmanager
def edit_outputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' outputs: each function receives the output and returns the new one (None keeps it).

    A plain name applies to every call of its module, `name#k` to one. Nested blocks act in the order of entry.
    Segments in `torch.utils.checkpoint` run without it, since a segment that runs again after the block would not be
    edited.

    Returns  nothing
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_forward_hook

    Example
        >>> with edit_outputs(model, {"layer4": lambda output: output * 0}):
        ...     scores = model(images)
        >>> torch.equal(scores[0], model.fc.bias)
        True
    """
    with ExitStack() as stack:
        model = unwrap_for_hooks(model, stack)
        points = [(find_hook_point(model, layer), edit) for layer, edit in _items(edits)]
        stack.enter_context(replaced_outputs(model, points))
        run_checkpoints_directly(stack)
        yield


@contextmanager
def edit_inputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' inputs: each function receives the input (a tuple if there are several) and returns the new one.

    Checkpointed segments run as in `edit_outputs`.

    Returns  nothing
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_forward_pre_hook

    Example
        >>> with edit_inputs(model, {"fc": lambda features: features * 0}):
        ...     scores = model(images)
        >>> torch.equal(scores[0], model.fc.bias)
        True
    """

    def act(k: int, given: tuple[Any, ...], edit: Edit) -> Any:
        changed = edit(given[0] if len(given) == 1 else given)
        return changed if changed is None or isinstance(changed, tuple) else (changed,)

    with ExitStack() as stack:
        model = unwrap_for_hooks(model, stack)
        calls = Calls(model, stack)
        for layer, edit in _items(edits):
            calls.before(stack, find_hook_point(model, layer), lambda k, given, edit=edit: act(k, given, edit))  # type: ignore[misc]
        run_checkpoints_directly(stack)
        yield


@contextmanager
def edit_gradients(edits: Mapping[Tensor | tuple[nn.Module, LayerName], Edit]) -> Iterator[None]:
    """Edit gradients in the backward pass: each function receives the gradient and returns the new one (None keeps it).

    Keys are tensors that require grad (leaf or intermediate), or pairs (model, layer) for the layer's output.
    Functions such as `gradient * 3` do not need to clone, since they do not work in place. Nested blocks act in the
    order of entry. Gradients of parameters of DistributedDataParallel are edited after they are averaged over the
    processes.

    Returns  nothing
    Errors   BadOption if a tensor does not require grad or is sharded, or if the returned gradient differs in shape,
             dtype or device (raised by the backward pass); LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook

    Example
        >>> with edit_gradients({model.fc.bias: lambda gradient: gradient * 3}):
        ...     model(images)[0, 281].backward()
        >>> model.fc.bias.grad[281]
        tensor(3.)
    """
    with ExitStack() as stack:
        for key, edit in _items(edits):
            checked = _validate_result(edit)
            if isinstance(key, Tensor):
                _hook_tensor(key, checked, stack)
            elif not isinstance(key, tuple) or len(key) != 2:
                raise wrong_type("The key", key, "a tensor, or (model, layer) for the output of a layer")
            else:
                _hook_outputs(key[0], [key[1]], stack, partial(_edit_output, checked))
        yield


@contextmanager
def edit_together(tensors: Sequence[Tensor], edit: JointEdit) -> Iterator[None]:
    """Change gradients of leaves jointly, once all have arrived: the function gets a list and returns one as long.

    It is called when a backward pass that reached one of the leaves is over, with the accumulated gradient of every
    leaf that has one, and what it returns becomes their `.grad`. `torch.autograd.grad` writes no `.grad`, so it is not
    changed.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient, or is not a leaf
    Source   torch.Tensor.register_hook, queue_callback of PyTorch's engine
    """
    with ExitStack() as stack:
        queue = queue_of_this_thread()
        queue.enter(GradientEdit({id(tensor): tensor for tensor in tensors}, joint=edit), stack)
        for tensor in tensors:
            _check_requires_grad(tensor)
            if not tensor.is_leaf:
                raise BadOption(
                    f"The tensor of shape {tuple(tensor.shape)} is not a leaf, so its gradient is propagated before "
                    "the others are known. Pass parameters, or edit each gradient separately."
                )
            handle = tensor.register_hook(lambda gradient, tensor=tensor: queue.undo_joint_edit(tensor))
            stack.callback(handle.remove)
            _hook_accumulation(tensor, queue, stack)
            _watch_wrapper(tensor, queue, stack)
        yield


@contextmanager
def watch_gradients(
    tensors: Mapping[str, Tensor],
    observe: Observer,
    *,
    model: nn.Module | None = None,
    layers: Sequence[LayerName] = (),
) -> Iterator[None]:
    """Call `observe(name, call, gradient, unedited)` for each gradient of a tensor (call None) or a layer's output.

    A layer named `name#k` is observed only in that call. `gradient` includes the edits of blocks entered earlier;
    `unedited` is the gradient before any hook of the tensor. Both must be read immediately, since they are not copies.

    Returns  nothing
    Errors   BadOption if a tensor does not require grad; LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook
    """
    with ExitStack() as stack:
        for name, tensor in tensors.items():
            _watch_tensor(name, tensor, observe, stack)
        if model is not None and layers:
            _hook_outputs(model, layers, stack, partial(_observe_output, observe))
        yield


def _edit_output(edit: Edit, name: str, k: int, output: Tensor) -> list[Any]:
    return [output.register_hook(edit)]


def _observe_output(observe: Observer, name: str, k: int, output: Tensor) -> list[Any]:
    unedited: list[Tensor] = []
    first = _hook_first(output, lambda g: unedited.__setitem__(slice(None), [g]))
    return [first, output.register_hook(lambda g: observe(name, k, g, unedited.pop() if unedited else g))]


def _watch_tensor(name: str, tensor: Tensor, observe: Observer, stack: ExitStack) -> None:
    unedited: list[Tensor] = []
    queue = queue_of_this_thread()

    def store(gradient: Tensor) -> None:
        if queue.belongs_to_this_thread():
            unedited[:] = [gradient]  # replaces a gradient left behind by a failed pass

    def report(gradient: Tensor) -> None:
        # Popped, so that the engine can use the gradient as `.grad` without a copy.
        observe(name, None, gradient, unedited.pop() if unedited else gradient)

    def store_averaged(gradient: Tensor) -> None:
        unedited[:] = [gradient]

    _hook_tensor(tensor, report, stack, observes=True, arrived=store_averaged)
    stack.callback(_hook_first(tensor, store).remove)


def _hook_first(tensor: Tensor, hook: Callable[[Tensor], None]) -> Any:
    """Register a hook that is called before the tensor's existing hooks, and return its handle."""
    handle = tensor.register_hook(hook)
    hooks: dict[int, Any] = tensor._backward_hooks  # type: ignore[assignment]
    *others, (key, registered) = hooks.items()
    hooks.clear()  # the engine uses the underlying dict order, which `move_to_end` does not change
    hooks[key] = registered
    hooks.update(others)
    return handle


def _check_requires_grad(tensor: Tensor) -> None:
    if tensor.is_leaf:
        refuse_sharded(tensor, "After backward, change or read parameter.grad.")
    if not tensor.requires_grad:
        raise BadOption(
            f"The tensor of shape {tuple(tensor.shape)} does not require grad, so it has no gradient. "
            "Call requires_grad_() on it before the forward pass."
        )


def _hook_tensor(
    tensor: Tensor,
    edit: Edit,
    stack: ExitStack,
    *,
    observes: bool = False,
    arrived: Callable[[Tensor], None] | None = None,
) -> None:
    _check_requires_grad(tensor)
    queue, key = queue_of_this_thread(), id(tensor)
    entry = GradientEdit({key: tensor}, edit, observes=observes, arrived=arrived)
    queue.enter(entry, stack)
    if tensor.is_leaf and runs_distributed():
        _hook_accumulation(tensor, queue, stack)
        _watch_wrapper(tensor, queue, stack)
    handle = tensor.register_hook(lambda gradient: queue.edit_gradient(entry, key, gradient))
    stack.callback(handle.remove)


def _hook_accumulation(tensor: Tensor, queue: GradientQueue, stack: ExitStack) -> None:
    """Notice when a pass has written the tensor's `.grad`, until the stack is closed."""
    stack.callback(tensor.register_post_accumulate_grad_hook(queue.note_accumulated).remove)


def _watch_wrapper(tensor: Tensor, queue: GradientQueue, stack: ExitStack) -> None:
    """Notice all passes over the wrapper that averages this tensor's gradient, also those that do not reach it."""
    wrapper = reducing_wrapper(tensor)
    if wrapper is None:
        return
    key = id(wrapper)
    watch = queue.watched.setdefault(key, Watch())
    block = object()

    def leave() -> None:
        watch.blocks[:] = [each for each in watch.blocks if each is not block]
        if not watch.blocks:
            queue.watched.pop(key, None)
            for handle in watch.handles:
                handle.remove()

    stack.callback(leave)
    watch.blocks.append(block)
    if not watch.handles:
        parameters = [parameter for parameter in wrapper._module_parameters if parameter.requires_grad]
        watch.handles += [each.register_hook(lambda gradient: queue.notice_pass()) for each in parameters]


def _hook_outputs(
    model: nn.Module, layers: Sequence[LayerName], stack: ExitStack, register: Callable[[str, int, Tensor], list[Any]]
) -> None:
    """Hook the gradients of layers' outputs until the stack is closed.

    `register` gets the layer's name, the number of the call and the clone that replaces the output, and returns the
    handles of its hooks. Later blocks use the clone of the first block, so that all hooks act in the order of entry.
    """
    handles: list[Any] = []

    def drop_dead() -> None:
        # Outputs of earlier forward passes are freed with their graphs; their handles must not accumulate in training.
        handles[:] = [handle for handle in handles if handle.hooks_dict_ref() is not None]

    def act(k: int, output: Any, name: str) -> Any:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return None
        clone = output if hasattr(output, "_edited") else output.clone()
        clone._edited = True  # type: ignore[attr-defined]
        handles.extend(register(name, k, clone))
        return clone

    stack.callback(lambda: [handle.remove() for handle in handles])
    model = unwrap_for_hooks(model, stack)
    calls = Calls(model, stack, drop_dead)
    for point in [find_hook_point(model, layer) for layer in layers]:
        calls.after(stack, point, partial(act, name=point.name))


def _validate_result(edit: Edit) -> Edit:
    def hook(gradient: Tensor) -> Tensor | None:
        changed = edit(gradient)
        if changed is None:
            return None
        if not isinstance(changed, Tensor):
            raise WrongType(f"The gradient function returned {shorten(changed)}; it must return a Tensor or None.")
        for what in ("shape", "dtype", "device"):
            returned, expected = getattr(changed, what), getattr(gradient, what)
            if returned != expected:
                if what == "shape":
                    returned, expected = tuple(returned), tuple(expected)
                raise BadOption(
                    f"The function returned a gradient of {what} {returned}; it must keep {what} {expected}."
                )
        return changed

    return hook
