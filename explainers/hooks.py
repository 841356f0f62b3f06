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

from .errors import BadOption, LayerNotFound, LayerRanRepeatedly, UnsupportedModel, nearest

LayerName = str | nn.Module
Edit = Callable[[Any], Any]


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile`, DataParallel or DistributedDataParallel; else the model itself."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def frozen_graph(model: nn.Module) -> str | None:
    """"scripted", "traced" or "exported" where inner hooks are refused or never fire; None for ordinary modules."""
    if isinstance(model, torch.jit.ScriptModule):
        return "traced" if isinstance(model, torch.jit.TopLevelTracedModule) else "scripted"
    if isinstance(model, torch.fx.GraphModule):
        calls = any(node.op == "call_module" for node in model.graph.nodes)
        return None if calls or not list(model.children()) else "exported"
    return next((kind for child in model.children() if (kind := frozen_graph(child)) == "exported"), None)


class _Site:
    """A layer as asked for: module, its dotted name, and the number of the call (None: all of them)."""

    def __init__(self, model: nn.Module, layer: LayerName) -> None:
        names = dict(model.named_modules(remove_duplicate=False))
        if isinstance(layer, nn.Module):
            inner = unwrap(layer)
            name = next((n for n, m in names.items() if m is inner), None)
            if name is None:
                raise LayerNotFound(
                    f"The {type(layer).__name__} given as layer is not part of this {type(model).__name__}. "
                    "Give a module of the same model, or a name from list_layers(model, images)."
                )
            layer = name
        elif not isinstance(layer, str):
            raise TypeError(f"layer is {layer!r}; give a name from list_layers(model, images) or the module itself.")
        self.name = layer
        self.path, _, number = layer.partition("#")
        if self.path not in names or (number and not number.isdigit()):
            hint = nearest(self.path, [n for n in names if n])
            raise LayerNotFound(
                f"{type(model).__name__} has no layer {layer!r}. {hint}list_layers(model, images) gives every name."
            )
        self.module = names[self.path]
        if isinstance(self.module, torch.jit.ScriptModule) or (kind := frozen_graph(model)):
            raise UnsupportedModel(no_inner_hooks(kind if not isinstance(self.module, torch.jit.ScriptModule) else "scripted"))
        self.call = int(number) if number else None


def no_inner_hooks(kind: str | None) -> str:
    """The sentence for a model of `kind` whose inner modules take no hooks."""
    return (
        f"The model is {kind}: hooks on its inner layers never fire, so a method that reads a layer cannot see it. "
        "Give the original nn.Module, or use an input-gradient method (saliency, input_x_gradient, "
        "integrated_gradients, smooth_grad) or occlusion, which need the output alone."
    )


class _Calls:
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

    def before(self, stack: ExitStack, site: _Site, act: Callable[[int, tuple[Any, ...]], Any]) -> None:
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

    def after(self, stack: ExitStack, site: _Site, act: Callable[[int, Any], Any]) -> None:
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


class Records(Mapping[str, Any]):
    """What was recorded, by layer name; `name#k` names the k-th call where a module ran more than once."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[int, Any]] = {}

    def put(self, path: str, call: int, value: Any) -> None:
        self._calls.setdefault(path, {})[call] = value

    def clear(self) -> None:
        self._calls.clear()

    def freeze(self) -> None:
        """Cut the records from the autograd graph, so that nothing of it stays alive."""
        for calls in self._calls.values():
            for k, value in calls.items():
                calls[k] = _map_tensors(value, Tensor.detach)

    def __getitem__(self, name: str) -> Any:
        path, _, number = name.partition("#")
        calls = self._calls.get(path)
        if not calls or (number and int(number) not in calls):
            raise LayerNotFound(f"Nothing was recorded for layer {name!r}. Recorded were {', '.join(self) or 'no layers'}.")
        if number:
            return calls[int(number)]
        if len(calls) > 1:
            raise LayerRanRepeatedly(ran_repeatedly(path, len(calls)))
        return next(iter(calls.values()))

    def __iter__(self) -> Iterator[str]:
        for path, calls in self._calls.items():
            yield from [path] if list(calls) == [0] else [f"{path}#{k}" for k in sorted(calls)]

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._calls.values())

    def __repr__(self) -> str:
        return f"Records({', '.join(f'{n}: {_shape(self[n])}' for n in self)})"


def ran_repeatedly(path: str, count: int) -> str:
    """The sentence for a plain name that means several calls."""
    names = ", ".join(repr(f"{path}#{k}") for k in range(count))
    return f"Layer {path!r} runs {count} times in one forward pass. Name the call: {names}."


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
    model = unwrap(model)
    found = Capture()

    def start() -> None:
        for records in (found.outputs, found.inputs, found.gradients):
            records.clear()

    with ExitStack() as stack:
        stack.callback(lambda: [r.freeze() for r in (found.outputs, found.inputs, found.gradients)])
        sites = [_Site(model, layer) for layer in _several(layers)]
        calls = _Calls(model, stack, start)
        for site in sites:
            calls.before(stack, site, _record_inputs(site.path, found.inputs))
            calls.after(stack, site, _record_outputs(site.path, found, stack if gradients else None))
        yield found


def _record_inputs(path: str, inputs: Records) -> Callable[[int, tuple[Any, ...]], Any]:
    def act(k: int, given: tuple[Any, ...]) -> Any:
        inputs.put(path, k, given[0] if len(given) == 1 else given)
        return _map_tensors(given, Tensor.clone)

    return act


def _record_outputs(path: str, found: Capture, stack: ExitStack | None) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        if stack is not None and isinstance(output, Tensor) and torch.is_grad_enabled():
            if not output.requires_grad and output.is_floating_point():
                # Frozen network, plain input: the output itself becomes the leaf that gradients flow to.
                output = output.detach().requires_grad_()
            if output.requires_grad:
                handle = output.register_hook(lambda g: found.gradients.put(path, k, g.detach().clone()))
                stack.callback(handle.remove)
        found.outputs.put(path, k, output)
        return _map_tensors(output, Tensor.clone)

    return act


@contextmanager
def edit_outputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' outputs: each function gets the output and returns the new one (None keeps it).

    A plain name acts on every call of its module, `name#k` on one. Blocks nest; the first entered acts first.

    Returns  nothing
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_forward_hook
    """
    model = unwrap(model)
    with ExitStack() as stack:
        calls = _Calls(model, stack)
        for layer, edit in edits.items():
            calls.after(stack, _Site(model, layer), lambda k, output, edit=edit: edit(output))  # type: ignore[misc]
        yield


@contextmanager
def edit_inputs(model: nn.Module, edits: Mapping[LayerName, Edit]) -> Iterator[None]:
    """Replace layers' inputs: each function gets the input (a tuple where there are several) and returns the new one.

    Returns  nothing
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_forward_pre_hook
    """
    model = unwrap(model)

    def act(k: int, given: tuple[Any, ...], edit: Edit) -> Any:
        changed = edit(given[0] if len(given) == 1 else given)
        return changed if changed is None or isinstance(changed, tuple) else (changed,)

    with ExitStack() as stack:
        calls = _Calls(model, stack)
        for layer, edit in edits.items():
            calls.before(stack, _Site(model, layer), lambda k, given, edit=edit: act(k, given, edit))  # type: ignore[misc]
        yield


@contextmanager
def edit_gradients(edits: Mapping[Tensor | tuple[nn.Module, LayerName], Edit]) -> Iterator[None]:
    """Change gradients on their way back: each function gets the gradient and returns the new one (None keeps it).

    Keys are tensors that require grad (leaves or intermediate ones), or pairs (model, layer): the layer's output.
    A hook need not clone before `gradient * 3`: nothing is modified in place.

    Returns  nothing
    Errors   BadOption when a tensor takes no gradient, or when the returned gradient differs in shape, dtype or device
             (raised by the backward pass); LayerNotFound, UnsupportedModel
    Source   torch.Tensor.register_hook
    """
    with ExitStack() as stack:
        for key, edit in edits.items():
            checked = _checked(edit)
            if isinstance(key, Tensor):
                if not key.requires_grad:
                    raise BadOption(
                        f"The tensor of shape {tuple(key.shape)} does not require grad, so no gradient reaches it. "
                        "Call requires_grad_() on it before the forward pass."
                    )
                stack.callback(key.register_hook(checked).remove)
            else:
                model = unwrap(key[0])
                act = _hook_output(checked, stack)
                _Calls(model, stack).after(stack, _Site(model, key[1]), act)
        yield


def _hook_output(edit: Edit, stack: ExitStack) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        if isinstance(output, Tensor) and output.requires_grad:
            handed = output.clone()
            stack.callback(output.register_hook(edit).remove)
            return handed
        return None

    return act


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

    Returns  an `InputGradients`; a module's `grad_input` is this module's own share where its input is used elsewhere too
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_full_backward_hook
    """
    model = unwrap(model)
    found = InputGradients()

    def watch(records: Records, path: str, k: int, value: Any) -> Any:
        handed = _map_tensors(value, Tensor.clone)
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
        calls = _Calls(model, stack, start)
        for site in [_Site(model, layer) for layer in _several(layers)]:
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


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(each, function) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_map_tensors(each, function) for each in value)
    if isinstance(value, dict):
        return type(value)({name: _map_tensors(each, function) for name, each in value.items()})
    return value


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
