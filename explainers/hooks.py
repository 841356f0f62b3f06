"""Forward, pre-forward, Tensor and full backward hooks made safe: the only file that registers hooks on modules.

Four promises hold for everything here:

    thread    only forwards of the thread that entered the block are seen; all others pass untouched
    call      a module that runs several times is told apart as `name#0`, `name#1`, in the order of its calls
    clone     what was recorded is handed on as a clone, so a later in-place operation does not reach the record
    removal   every hook is gone after the block, whatever fails, also while the hooks are being registered

Counting starts anew with each forward of the model itself; records are those of its latest forward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .errors import BadOption
from .gradient_order import Joint, Line, Link, line_of_this_thread
from .records import Records, map_tensors
from .sites import LayerName, Site, find_site, inside

Edit = Callable[[Any], Any]
See = Callable[[str, int | None, Tensor], None]


class Calls:
    """Counts the calls of each hooked module within one forward of the model, in one thread."""

    def __init__(self, model: nn.Module, stack: ExitStack, on_start: Callable[[], None] | None = None) -> None:
        self.thread = threading.get_ident()
        self.counts: dict[int, int] = {}
        self._on_start = on_start
        self._keep(stack, model.register_forward_pre_hook(self._begin, prepend=True))

    @staticmethod
    def _keep(stack: ExitStack, handle: Any) -> None:
        stack.callback(handle.remove)

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if self.mine():
            self.counts.clear()
            if self._on_start:
                self._on_start()

    def mine(self) -> bool:
        return threading.get_ident() == self.thread

    def before(self, stack: ExitStack, site: Site, act: Callable[[int, tuple[Any, ...]], Any]) -> None:
        """Call `act(k, inputs)` before call k of the site's module, or only before the call that was asked for."""
        counts: dict[int, int] = self.counts
        key = -1 - id(act)

        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
            if not self.mine():
                return None
            k = counts.get(key, 0)
            counts[key] = k + 1
            return act(k, inputs) if site.call in (None, k) else None

        self._keep(stack, site.module.register_forward_pre_hook(hook))

    def after(self, stack: ExitStack, site: Site, act: Callable[[int, Any], Any]) -> None:
        """Call `act(k, output)` after call k of the site's module, or only after the call that was asked for."""
        counts: dict[int, int] = self.counts
        key = id(act)

        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if not self.mine():
                return None
            k = counts.get(key, 0)
            counts[key] = k + 1
            return act(k, output) if site.call in (None, k) else None

        self._keep(stack, site.module.register_forward_hook(hook))


class Capture:
    """The records of a `capture` block: `outputs`, `inputs` and, where asked for, `gradients`, each by layer name."""

    def __init__(self) -> None:
        self.outputs, self.inputs, self.gradients = Records(), Records(), Records()

    def __repr__(self) -> str:
        return f"Capture(outputs={self.outputs}, gradients={self.gradients})"


@contextmanager
def capture(model: nn.Module, layers: LayerName | Sequence[LayerName], *, gradients: bool = False) -> Iterator[Capture]:
    """Record what goes into and comes out of layers, and with `gradients` the gradients that reach their outputs.

    Returns  a `Capture`; after the block its tensors are detached. A layer's tensor has the layer's own shape,
             dtype and device, and is the value before any later in-place operation. Gradients are those of the latest
             backward pass run inside the block; they are recorded also where all parameters are frozen.
    Errors   LayerNotFound for an unknown name (or one that did not run, at look-up), LayerRanRepeatedly at look-up
             of a plain name with several calls, UnsupportedModel for scripted, traced and exported models.
    Source   torch.nn.Module.register_forward_hook, torch.Tensor.register_hook
    """
    found = Capture()

    def start() -> None:
        for records in (found.outputs, found.inputs, found.gradients):
            records.clear()

    with ExitStack() as stack:
        for records in (found.outputs, found.inputs, found.gradients):
            stack.callback(records.freeze)
        model = inside(model, stack)
        sites = [find_site(model, layer) for layer in _several(layers)]
        calls = Calls(model, stack, start)
        for site in sites:
            calls.before(stack, site, _record_inputs(site.path, found.inputs))
            calls.after(stack, site, _record_outputs(site.path, found, stack if gradients else None))
        yield found


def _record_inputs(path: str, inputs: Records) -> Callable[[int, tuple[Any, ...]], Any]:
    def act(k: int, given: tuple[Any, ...]) -> Any:
        inputs.put(path, k, given[0] if len(given) == 1 else given)
        return map_tensors(given, Tensor.clone)

    return act


def _record_outputs(path: str, found: Capture, stack: ExitStack | None) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        if stack is not None and isinstance(output, Tensor) and torch.is_grad_enabled():
            if not output.requires_grad and output.is_floating_point():
                # Frozen network, plain input: the output itself becomes the leaf that gradients flow to.
                output = output.detach().requires_grad_()
            if output.requires_grad:
                # A module may hand its very input on (Dropout in eval): the view has the share of this output alone.
                output = output.view_as(output)
                handle = output.register_hook(lambda g: found.gradients.put(path, k, g.detach().clone()))
                stack.callback(handle.remove)
        found.outputs.put(path, k, output)
        return map_tensors(output, Tensor.clone)

    return act


@contextmanager
def edit_outputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' outputs: each function gets the output and returns the new one (None keeps it).

    A plain name acts on every call of its module, `name#k` on one. Blocks nest; the first entered acts first.

    Returns  nothing
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_forward_hook
    """
    with ExitStack() as stack:
        model = inside(model, stack)
        calls = Calls(model, stack)
        for layer, edit in edits.items():
            calls.after(stack, find_site(model, layer), lambda k, output, edit=edit: edit(output))  # type: ignore[misc]
        yield


@contextmanager
def edit_inputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' inputs: each function gets the input (a tuple where there are several) and returns the new one.

    Returns  nothing
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_forward_pre_hook
    """

    def act(k: int, given: tuple[Any, ...], edit: Edit) -> Any:
        changed = edit(given[0] if len(given) == 1 else given)
        return changed if changed is None or isinstance(changed, tuple) else (changed,)

    with ExitStack() as stack:
        model = inside(model, stack)
        calls = Calls(model, stack)
        for layer, edit in edits.items():
            calls.before(stack, find_site(model, layer), lambda k, given, edit=edit: act(k, given, edit))  # type: ignore[misc]
        yield


@contextmanager
def edit_gradients(edits: Mapping[Tensor | tuple[nn.Module, LayerName], Edit]) -> Iterator[None]:
    """Change gradients on their way back: each function gets the gradient and returns the new one (None keeps it).

    Keys are tensors that require grad (leaves or intermediate ones), or pairs (model, layer): the layer's output.
    A hook need not clone before `gradient * 3`: nothing is modified in place. Blocks act in the order of entry.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient, or when the returned gradient differs in shape, dtype or device
             (raised by the backward pass); LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook
    """
    with ExitStack() as stack:
        for key, edit in edits.items():
            checked = _checked(edit)
            if isinstance(key, Tensor):
                _hook_tensor(key, checked, stack)
            else:
                model = inside(key[0], stack)
                act = _hook_output(checked, stack)
                Calls(model, stack).after(stack, find_site(model, key[1]), act)
        yield


@contextmanager
def edit_together(tensors: Sequence[Tensor], edit: Joint) -> Iterator[None]:
    """Change the gradients of leaves once all of them have theirs: the function gets a list and returns one as long.

    It is called when a backward pass that reached one of the leaves is over, with the accumulated gradient of every
    leaf that has one, and what it returns becomes their `.grad`. `torch.autograd.grad` writes no `.grad`, so it is not
    changed.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient, or is not a leaf
    Source   torch.Tensor.register_hook, queue_callback of PyTorch's engine
    """
    with ExitStack() as stack:
        line = line_of_this_thread()
        line.enter(Link({id(each): each for each in tensors}, joint=edit), stack)
        for tensor in tensors:
            _takes_gradient(tensor)
            if not tensor.is_leaf:
                raise BadOption(
                    f"The tensor of shape {tuple(tensor.shape)} is not a leaf: its gradient flows on before the others "
                    "are known. Give parameters, or edit each gradient by itself."
                )
            stack.callback(tensor.register_hook(_announces(line, tensor)).remove)
        yield


@contextmanager
def watch_gradients(
    tensors: Mapping[str, Tensor],
    see: See,
    *,
    model: nn.Module | None = None,
    layers: Sequence[LayerName] = (),
) -> Iterator[None]:
    """Call `see(name, call, gradient)` for each gradient that reaches a tensor (call None) or a layer's output.

    A layer named `name#k` is watched at that call alone. The gradient is the one that edits entered earlier have made
    and must be read at once: it is not a copy.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient; LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook
    """
    handles: list[Any] = []

    def forget() -> None:
        # Outputs of earlier forwards have died with their graphs; a training run must not gather their handles.
        handles[:] = [handle for handle in handles if handle.hooks_dict_ref() is not None]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    with ExitStack() as stack:
        for name, tensor in tensors.items():
            _hook_tensor(tensor, lambda g, name=name: see(name, None, g), stack, observes=True)  # type: ignore[misc]
        if model is not None and layers:
            stack.callback(remove)
            model = inside(model, stack)
            calls = Calls(model, stack, forget)
            for site in [find_site(model, layer) for layer in layers]:
                calls.after(stack, site, _hand_on(site.name, see, handles))
        yield


def _hand_on(name: str, see: See, handles: list[Any]) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        handed = _handed_on(output)
        if handed is not None:
            handles.append(handed.register_hook(lambda gradient: see(name, k, gradient)))
        return handed

    return act


def _takes_gradient(tensor: Tensor) -> None:
    if not tensor.requires_grad:
        raise BadOption(
            f"The tensor of shape {tuple(tensor.shape)} does not require grad, so no gradient reaches it. "
            "Call requires_grad_() on it before the forward pass."
        )


def _hook_tensor(tensor: Tensor, edit: Edit, stack: ExitStack, *, observes: bool = False) -> None:
    _takes_gradient(tensor)
    line, key = line_of_this_thread(), id(tensor)
    link = Link({key: tensor}, edit, observes=observes)
    line.enter(link, stack)
    stack.callback(tensor.register_hook(lambda gradient: line.at_once(link, key, gradient)).remove)


def _announces(line: Line, tensor: Tensor) -> Callable[[Tensor], None]:
    return lambda gradient: line.arrived(tensor)


def _hook_output(edit: Edit, stack: ExitStack) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        handed = _handed_on(output)
        if handed is not None:
            stack.callback(handed.register_hook(edit).remove)
        return handed

    return act


def _handed_on(output: Any) -> Tensor | None:
    """What goes on in the output's place and takes hooks on its gradient; None where no gradient will come.

    The first block hands a clone on, and later ones use it too: hooks of one tensor act in the order of entry.
    """
    if not isinstance(output, Tensor) or not output.requires_grad:
        return None
    handed = output if hasattr(output, "_edited") else output.clone()
    handed._edited = True  # type: ignore[attr-defined]
    return handed


def _checked(edit: Edit) -> Edit:
    def hook(gradient: Tensor) -> Tensor | None:
        changed = edit(gradient)
        if changed is None:
            return None
        if not isinstance(changed, Tensor):
            raise TypeError(f"The function gave {changed!r} for a gradient; it must return a Tensor or None.")
        for what in ("shape", "dtype", "device"):
            given, wanted = getattr(changed, what), getattr(gradient, what)
            if given != wanted:
                if what == "shape":
                    given, wanted = tuple(given), tuple(wanted)
                raise BadOption(f"The function returned a gradient of {what} {given}; it must keep {what} {wanted}.")
        return changed

    return hook


class InputGradients:
    """Both gradients of a module by layer name: `grad_input` (of its inputs) and `grad_output` (of its output)."""

    def __init__(self) -> None:
        self.grad_input, self.grad_output = Records(), Records()


@contextmanager
def input_gradients(model: nn.Module, layers: LayerName | Sequence[LayerName]) -> Iterator[InputGradients]:
    """Record what a full backward hook sees: the gradients of a module's inputs and output.

    They are taken from the tensors themselves, so that in-place modules (`ReLU(inplace=True)`) work, which
    PyTorch's own full backward hook refuses.

    Returns  an `InputGradients`; a module's `grad_input` is this module's own share where its input is used elsewhere
             too
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_full_backward_hook
    """
    found = InputGradients()

    def watch(records: Records, path: str, k: int, value: Any) -> Any:
        handed = map_tensors(value, Tensor.clone)
        tensors = [t for t in (handed if isinstance(handed, tuple) else (handed,)) if isinstance(t, Tensor)]
        for index, tensor in enumerate(tensors):
            if tensor.requires_grad:
                save = _saver(records, path, k, index, len(tensors))
                stack.callback(tensor.register_hook(save).remove)
        return handed

    def start() -> None:
        found.grad_input.clear()
        found.grad_output.clear()

    with ExitStack() as stack:
        model = inside(model, stack)
        calls = Calls(model, stack, start)
        for site in [find_site(model, layer) for layer in _several(layers)]:
            path = site.path
            calls.before(stack, site, lambda k, given, path=path: watch(found.grad_input, path, k, given))  # type: ignore[misc]
            calls.after(stack, site, lambda k, out, path=path: watch(found.grad_output, path, k, out))  # type: ignore[misc]
        yield found


def _saver(records: Records, path: str, call: int, index: int, count: int) -> Callable[[Tensor], None]:
    def save(gradient: Tensor) -> None:
        gradient = gradient.detach().clone()
        if count == 1:
            records.put(path, call, gradient)
            return
        known = records._calls.get(path, {}).get(call, (None,) * count)
        records.put(path, call, (*known[:index], gradient, *known[index + 1 :]))

    return save


def _several(layers: LayerName | Sequence[LayerName]) -> list[LayerName]:
    return [layers] if isinstance(layers, (str, nn.Module)) else list(layers)
