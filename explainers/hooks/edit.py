"""Change outputs, inputs and gradients by forward, pre-forward and Tensor hooks that are always removed.

Four promises hold for everything in this package:

    thread    only forwards of the thread that entered the block are seen; all others pass untouched
    call      a module that runs several times is told apart as `name#0`, `name#1`, in the order of its calls
    clone     the network goes on with a clone of what was recorded, so no later in-place operation reaches the record
    removal   every hook is gone after the block, whatever fails, also while the hooks are being registered

Counting starts anew with each forward of the model itself; records are those of its latest forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.hooks.calls import Calls, Edit, replaced_outputs
from explainers.hooks.gradient_queue import GradientEdit, GradientQueue, JointEdit, queue_of_this_thread
from explainers.hooks.locate import find_hook_point, inside
from explainers.options import LayerName

Observer = Callable[[str, int | None, Tensor, Tensor], None]
"""Gets the name, the call, the gradient as it is, and as it was before any hook: the same object where none acted."""


@contextmanager
def edit_outputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' outputs: each function gets the output and returns the new one (None keeps it).

    A plain name acts on every call of its module, `name#k` on one. Blocks nest; the first entered acts first.

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
        model = inside(model, stack)
        points = [(find_hook_point(model, layer), edit) for layer, edit in edits.items()]
        stack.enter_context(replaced_outputs(model, points))
        yield


@contextmanager
def edit_inputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' inputs: each function gets the input (a tuple where there are several) and returns the new one.

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
        model = inside(model, stack)
        calls = Calls(model, stack)
        for layer, edit in edits.items():
            calls.before(stack, find_hook_point(model, layer), lambda k, given, edit=edit: act(k, given, edit))  # type: ignore[misc]
        yield


@contextmanager
def edit_gradients(edits: Mapping[Tensor | tuple[nn.Module, LayerName], Edit]) -> Iterator[None]:
    """Change gradients in the backward pass: each function gets the gradient and returns the new one (None keeps it).

    Keys are tensors that require grad (leaves or intermediate ones), or pairs (model, layer): the layer's output.
    A hook need not clone before `gradient * 3`: nothing is modified in place. Blocks act in the order of entry.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient, or when the returned gradient differs in shape, dtype or device
             (raised by the backward pass); LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook

    Example
        >>> with edit_gradients({model.fc.bias: lambda gradient: gradient * 3}):
        ...     model(images)[0, 281].backward()
        >>> model.fc.bias.grad[281]
        tensor(3.)
    """
    with ExitStack() as stack:
        for key, edit in edits.items():
            checked = _checked(edit)
            if isinstance(key, Tensor):
                _hook_tensor(key, checked, stack)
            else:
                model = inside(key[0], stack)
                act = _hook_output(checked, stack)
                Calls(model, stack).after(stack, find_hook_point(model, key[1]), act)
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
            _takes_gradient(tensor)
            if not tensor.is_leaf:
                raise BadOption(
                    f"The tensor of shape {tuple(tensor.shape)} is not a leaf: its gradient flows on before the others "
                    "are known. Give parameters, or edit each gradient by itself."
                )
            stack.callback(tensor.register_hook(_announces(queue, tensor)).remove)
        yield


@contextmanager
def watch_gradients(
    tensors: Mapping[str, Tensor],
    observe: Observer,
    *,
    model: nn.Module | None = None,
    layers: Sequence[LayerName] = (),
) -> Iterator[None]:
    """Call `observe(name, call, gradient, unedited)` for each gradient that reaches a tensor (call None) or a layer's
    output.

    A layer named `name#k` is watched at that call alone. The gradient is the one that edits entered earlier have made;
    `unedited` came before the first hook of the tensor, whoever registered it. Both must be read at once: they are no
    copies.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient; LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook
    """
    handles: list[Any] = []

    def drop_dead() -> None:
        # Outputs of earlier forwards are freed with their graphs; a training run must not accumulate their handles.
        handles[:] = [handle for handle in handles if handle.hooks_dict_ref() is not None]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    with ExitStack() as stack:
        for name, tensor in tensors.items():
            _watch_tensor(name, tensor, observe, stack)
        if model is not None and layers:
            stack.callback(remove)
            model = inside(model, stack)
            calls = Calls(model, stack, drop_dead)
            for point in [find_hook_point(model, layer) for layer in layers]:
                calls.after(stack, point, _observe_output(point.name, observe, handles))
        yield


def _observe_output(name: str, observe: Observer, handles: list[Any]) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        clone = _hookable(output)
        if clone is not None:
            came: list[Tensor] = []
            handles.append(_hook_first(clone, lambda g: came.__setitem__(slice(None), [g])))
            handles.append(clone.register_hook(lambda g: observe(name, k, g, came.pop() if came else g)))
        return clone

    return act


def _watch_tensor(name: str, tensor: Tensor, observe: Observer, stack: ExitStack) -> None:
    came: list[Tensor] = []
    queue = queue_of_this_thread()

    def arrive(gradient: Tensor) -> None:
        if queue.mine():
            came[:] = [gradient]  # one that a pass left behind when it failed is replaced

    def see(gradient: Tensor) -> None:
        # Popped, so that the engine may take the gradient over as `.grad` without copying it.
        observe(name, None, gradient, came.pop() if came else gradient)

    _hook_tensor(tensor, see, stack, observes=True)
    stack.callback(_hook_first(tensor, arrive).remove)


def _hook_first(tensor: Tensor, see: Callable[[Tensor], None]) -> Any:
    """A hook that is called before those that the tensor has; its handle."""
    handle = tensor.register_hook(see)
    hooks: dict[int, Any] = tensor._backward_hooks  # type: ignore[assignment]
    hook = hooks.pop(handle.id)
    others = list(hooks.items())
    hooks.clear()  # the engine reads the dict's own order, which `move_to_end` leaves as it is
    hooks[handle.id] = hook
    hooks.update(others)
    return handle


def _takes_gradient(tensor: Tensor) -> None:
    if not tensor.requires_grad:
        raise BadOption(
            f"The tensor of shape {tuple(tensor.shape)} does not require grad, so no gradient reaches it. "
            "Call requires_grad_() on it before the forward pass."
        )


def _hook_tensor(tensor: Tensor, edit: Edit, stack: ExitStack, *, observes: bool = False) -> None:
    _takes_gradient(tensor)
    queue, key = queue_of_this_thread(), id(tensor)
    entry = GradientEdit({key: tensor}, edit, observes=observes)
    queue.enter(entry, stack)
    stack.callback(tensor.register_hook(lambda gradient: queue.at_once(entry, key, gradient)).remove)


def _announces(queue: GradientQueue, tensor: Tensor) -> Callable[[Tensor], None]:
    return lambda gradient: queue.arrived(tensor)


def _hook_output(edit: Edit, stack: ExitStack) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        clone = _hookable(output)
        if clone is not None:
            stack.callback(clone.register_hook(edit).remove)
        return clone

    return act


def _hookable(output: Any) -> Tensor | None:
    """The tensor that replaces the output and takes hooks on its gradient; None where no gradient will arrive.

    The first block puts a clone in place, and later ones use it too: hooks of one tensor act in the order of entry.
    """
    if not isinstance(output, Tensor) or not output.requires_grad:
        return None
    clone = output if hasattr(output, "_edited") else output.clone()
    clone._edited = True  # type: ignore[attr-defined]
    return clone


def _checked(edit: Edit) -> Edit:
    def hook(gradient: Tensor) -> Tensor | None:
        changed = edit(gradient)
        if changed is None:
            return None
        if not isinstance(changed, Tensor):
            raise TypeError(f"The function gave {changed!r} for a gradient; it must return a Tensor or None.")
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
