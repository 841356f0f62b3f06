"""A network's layers, call by call, with their layouts, and its default layer, from one forward pass of one image.

The pass is tracked operation by operation (flow/dataflow.py); only names and numbers are kept.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import ExplainerError, UnsupportedModel, is_out_of_memory
from explainers.hooks.calls import Calls
from explainers.hooks.locate import HookPoint, no_inner_hooks
from explainers.hooks.records import only_tensor
from explainers.layers.default_layer import ForwardPass, find_default
from explainers.layers.flow.axes import Axes, kinds_of, why_lost
from explainers.layers.flow.cost import NO_COST, Cost
from explainers.layers.flow.dataflow import Dataflow, Edge
from explainers.layers.flow.operation import Reads
from explainers.layers.layer import Layer
from explainers.layers.layout import layout_by_axes, placement_of
from explainers.nested import TRANSFORM, is_transformed, list_tensors
from explainers.network.behavior import Look, note_reads, run_rows_correctly, watch
from explainers.network.decisions import Decisions
from explainers.network.eval_view import eval_view
from explainers.network.forward_wrapper import BatchSizeRefused, ForwardWrapper
from explainers.network.image_check import check_channel_count
from explainers.network.state.content import content_key
from explainers.network.state.settings import Settings, read_settings, read_values
from explainers.network.state.snapshot import Snapshot
from explainers.network.view import EvalView


class Profile(list[Layer]):
    """All layer calls of a model in one forward pass, in the order in which they returned; `default` is a layer name.

    `reads_values` is True if positions depend on values of tensors: an index, a grid of a warp, a number of pixels.
    `reads_image` is the operation by which the network reads a value of the image, or empty.

    `is_bypassed` is True if some path to the scores does not pass through the default layer, because no layer is on all
    paths. `forward` is the graph of the pass. `cost` is that of the pass for one image, `costs` has the part until each
    layer returns, and `own_costs` that between its start and its return.
    """

    default: str | None = None
    is_bypassed: bool = False
    reads_values: bool = False
    reads_image: str = ""
    forward: ForwardPass
    cost: Cost
    costs: dict[str, Cost]
    own_costs: dict[str, Cost]


@dataclass(eq=False)
class _Known:
    """A cached profile, and the modules and settings for which it is valid.

    `values` are those of small tensors if the network moves its image by them, else None.

    `unchanged` is the snapshot of the modules when the settings were last compared.

    `unrelated` counts how often the setting at an index changed without any effect on the layers, such as a counter of
    forward passes; after `_ENOUGH` times it is ignored.
    """

    profile: Profile
    modules: list[weakref.ref[nn.Module]]
    settings: Settings
    unrelated: Counter[int] = field(default_factory=Counter)

    hooks: list[Any] = field(default_factory=list)
    values: list[float] | None = None
    unchanged: Snapshot | None = None

    def is_valid(self, view: EvalView, hooks: bool = False) -> bool:
        if hooks and self.hooks != _user_hooks(view.listed):
            return False
        if self.values is not None and self.values != _values(view):
            return False
        if view.snapshot is not None and view.snapshot is self.unchanged:
            return True
        is_valid = self._has_settings(view)
        if is_valid:
            self.unchanged = view.snapshot
        return is_valid

    def _has_settings(self, view: EvalView) -> bool:
        if any(here() is not module for here, module in zip(self.modules, view.listed, strict=True)):
            return False  # a module was replaced by one that got its id
        if "settings" not in view.known:
            view.known["settings"] = read_settings(view.listed)  # once per call
        settings = view.known["settings"]
        return settings == self.settings or self.changed(settings) == []

    def changed(self, settings: Settings) -> list[int] | None:
        """Return the indices of the settings that changed and are not ignored, or None if all may have changed."""
        if len(settings) != len(self.settings):
            return None
        pairs = enumerate(zip(self.settings, settings, strict=True))
        return [k for k, (old, new) in pairs if old != new and self.unrelated[k] < _ENOUGH]


# One profile per model and input size, for the lifetime of the model. It contains names and numbers, but no tensors.
_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Known]] = weakref.WeakKeyDictionary()
_of_images: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Known]] = weakref.WeakKeyDictionary()
"""The profiles of the last `_IMAGES` images of models that decide by the image."""
_lock = threading.RLock()
_ENOUGH, _IMAGES = 3, 4


def _user_hooks(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the numbers of the user's hooks, which are never used again."""
    return [tuple(hooks) for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]


def _values(view: EvalView) -> list[float]:
    """Return the values of small tensors, read once per call."""
    if "values" not in view.known:
        view.known["values"] = read_values(view.model.modules() if view.is_gathered else view.listed)
    found: list[float] = view.known["values"]
    return found


def known_profile(view: EvalView, images: Tensor) -> Profile | None:
    """Return the cached profile of the model, or None if no forward pass of it as it is now has been profiled."""
    if view.decides:
        return _known_of_image(view, images)
    known = _find(view, images)
    return known.profile if known is not None and known.is_valid(view) else None


def _known_of_image(view: EvalView, images: Tensor) -> Profile | None:
    """Return the profile of the first image in this call or an earlier one, if the network decides by the image."""
    known = view.known.get(_known_of_image, ())
    if (found := next((layers for image, layers in known if torch.equal(image, images[0])), None)) is not None:
        return found
    key = _key_of_image(view, images)
    earlier = None if key is None else _of_images.get(view.owner, {}).get(key)
    if earlier is None or not earlier.is_valid(view, hooks=True):
        return None
    view.known.setdefault(_known_of_image, []).append((images[0].clone(), earlier.profile))
    return earlier.profile


def _key_of_image(view: EvalView, images: Tensor) -> Any:
    """Return a key for all that decides about the layers of the first image, or None if it cannot be known."""
    behavior = getattr(view.network, "behavior", None)
    if behavior is None or not behavior.is_repeatable or view.is_gathered or isinstance(view.given, ForwardWrapper):
        return None
    content = content_key(view.listed, images)
    kind = images.device.type
    precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return None if content is None else (images.shape[1:], view.modules, precision, content)


def _keep_of_image(view: EvalView, images: Tensor, known: _Known) -> None:
    """Keep the profile of the first image for this call, and for later ones with the same image."""
    view.known.setdefault(_known_of_image, []).append((images[0].clone(), known.profile))
    if (key := _key_of_image(view, images)) is not None:
        with _lock:
            kept = _of_images.setdefault(view.owner, {})
            kept.pop(key, None)
            kept[key] = known
            while len(kept) > _IMAGES:
                del kept[next(iter(kept))]


def _find(view: EvalView, images: Tensor) -> _Known | None:
    return _known.get(view.owner, {}).get((images.shape[1:], view.modules))  # both are atomic, so without the lock


def forget_profiles(view: EvalView) -> None:
    """Forget the profiles of a model, which no longer describe it."""
    view.known.clear()
    if view.snapshot is not None:
        view.snapshot.layouts.clear()
    with _lock:
        _known.pop(view.owner, None)
        _of_images.pop(view.owner, None)


def unchecked_profile(view: EvalView, images: Tensor) -> Profile:
    """Return the known profile, or compute it without the passes that check how the network treats rows.

    Errors   UnsupportedModel for scripted, traced and exported models
    """
    if view.kind is not None:
        raise UnsupportedModel(no_inner_hooks(view.kind))
    return known_profile(view, images) or _compute_profile(view, images)


def profile(model: nn.Module | EvalView, images: Tensor, *, hooks: bool = False) -> Profile:
    """Return the model's layers in a forward pass of the first image, cached for the lifetime of the model.

    It is computed again if a module or a setting of a module has changed, and with `hooks` if a hook of the user has.
    If the network decides by the image, it is computed for each image, and kept for the last few images.

    Errors   UnsupportedModel for scripted, traced and exported models
    """
    view = model if isinstance(model, EvalView) else eval_view(model)
    if view.kind is not None:
        raise UnsupportedModel(no_inner_hooks(view.kind))
    known = _find(view, images)
    if known is not None and known.is_valid(view, hooks):
        return known.profile
    settings = read_settings(view.listed)  # before the pass, which may change some
    try:
        run_rows_correctly(view, images, several=False, look=look(view))
        if view.decides and (layers := _known_of_image(view, images)) is not None:
            return layers
        traced = None if view.is_row_by_row else view.known.pop((look, images.shape[1:]), None)
        layers = _compute_profile(view, images) if traced is None else traced
    except Exception as error:
        check_channel_count(view.network, images, error)
        raise
    if layers.reads_image and not view.decides:  # only for images of this size
        note_reads(view, layers.reads_image)
        run_rows_correctly(view, images, several=False)
    modules, of_user = [weakref.ref(module) for module in view.listed], _user_hooks(view.listed)
    if view.decides:
        _keep_of_image(view, images, _Known(layers, modules, settings, hooks=of_user))
        return layers
    view.known["settings"] = settings
    new = _Known(layers, modules, settings, hooks=of_user, values=_values(view) if layers.reads_values else None)
    if known is not None and layers == known.profile and layers.default == known.profile.default:
        new.unrelated = known.unrelated + Counter(known.changed(settings) or ())
    with _lock:
        profiles = _known.setdefault(view.owner, {})
        if len(profiles) >= 16:
            profiles.clear()
        profiles[images.shape[1:], view.modules] = new
    return layers


def look(view: EvalView) -> Look:
    """Return a first pass that also traces the layers, for the next call of `profile`."""

    def trace(network: nn.Module, batch: Tensor) -> tuple[Any, str]:
        if view.kind is None and network is view.network:
            try:
                found, output = _trace(network, batch, weakref.ref(view.given if view.is_gathered else view.model))
            except Exception:
                return watch(network, batch)
            if all(each.frames == 1 for each in found):
                view.known[look, batch.shape[1:]] = found
            view.known[first_output] = batch, output
            return output, found.reads_image
        return watch(network, batch)

    return trace


def first_output(view: EvalView, image: Tensor) -> Any:
    """Return the network's output for an image [1, C, H, W] if its first pass in this call was that of the image."""
    seen, output = view.known.get(first_output, (None, None))
    return output if seen is not None and not view.is_row_by_row and torch.equal(seen, image) else None


def _compute_profile(view: EvalView, images: Tensor) -> Profile:
    """Profile the first image, or all images if the network does not accept another batch size."""
    # Layers trace their receptive fields later, when the copy of a sharded model no longer exists.
    model = weakref.ref(view.given if view.is_gathered else view.model)
    try:
        found, _ = _trace(view.network, images[:1], model)
        return _check_frames(view.network, images, model, found) if any(each.frames > 1 for each in found) else found
    except Exception as error:
        refused = isinstance(error, ExplainerError) and not isinstance(error, BatchSizeRefused)
        if len(images) == 1 or refused or is_out_of_memory(error):
            raise
    return _trace(view.network, images, model)[0]


def _check_frames(network: nn.Module, images: Tensor, model: Any, found: Profile) -> Profile:
    """Remove the grids of layers whose batch has the frames before the videos, which one video does not show."""
    try:
        two, _ = _trace(network, images[:1].expand(2, *images.shape[1:]), model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return found  # the network only accepts one row, and runs on each video separately
    if [layer.name for layer in two] != [layer.name for layer in found]:
        return two
    layers = [layer if layer.frames == 1 else other for layer, other in zip(found, two, strict=True)]
    profile = _add_default(layers, found.forward)
    profile.cost, profile.costs, profile.own_costs = found.cost, found.costs, found.own_costs
    profile.reads_image = found.reads_image
    return profile


@dataclass
class _Call:
    """A call of a module, with the shape, node and axes of the single tensor that it returns or its output contains.

    `plain` is True if the output is a tensor. `lost` is the reason why its cells have no position, if the axes of the
    output are not known.
    """

    path: str
    module: nn.Module
    shape: tuple[int, ...] = ()
    node: int | None = None
    axes: Axes = ()
    plain: bool = False
    lost: str = ""
    cost: Cost = NO_COST
    own_cost: Cost = NO_COST


@torch.no_grad()
def _trace(network: nn.Module, images: Tensor, model: Any) -> tuple[Profile, Any]:
    """Return the profile of a forward pass, and its output."""
    calls: list[_Call] = []
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        hooks = Calls(network, stack)
        batch = images.clone()
        flow = Dataflow(batch)

        started: list[Cost] = []

        def start(k: int, inputs: tuple[Any, ...]) -> None:
            started.append(flow.cost)

        def record(path: str, module: nn.Module, output: Any) -> None:
            own = flow.cost.minus(started.pop()).per_image(len(images))
            is_plain, until = isinstance(output, Tensor), flow.cost.per_image(len(images))
            call = _Call(path, module, plain=is_plain, cost=until, own_cost=own)
            tensor = only_tensor(output)
            if tensor is not None and not tensor.is_complex():  # a pass to a complex layer raises an error
                call.shape, value = tuple(tensor.shape), flow.value(tensor)
                call.node, call.axes = value or (None, ())
                call.lost = TRANSFORM if is_transformed(tensor) else why_lost(call.axes)
            calls.append(call)

        for path, module in network.named_modules():
            if path and not isinstance(module, torch.jit.ScriptModule):
                hooks.before(stack, HookPoint(path, module), start)
                hooks.after(stack, HookPoint(path, module), lambda k, out, p=path, m=module: record(p, m, out))  # type: ignore[misc]
        decisions = Decisions()
        with decisions.watch(batch), flow:
            output = network(batch)
        values = [value for value in map(flow.value, _scores(output)) if value]
    layers = _layers(calls, images, model)
    end = flow.graph.add([Edge(value.node, Reads.ALL) for value in values] or [Edge(0, Reads.ALL)])
    dense = any(flow.graph.on_grid[value.node] for value in values)
    nodes, plain = tuple(call.node for call in calls), tuple(call.plain for call in calls)
    profile = _add_default(layers, ForwardPass(flow.graph, end, dense, nodes, plain))
    profile.reads_values, profile.reads_image = flow.reads_values, next(iter(decisions.reads), "")
    profile.cost = flow.cost.per_image(len(images))
    profile.costs = {layer.name: call.cost for layer, call in zip(layers, calls, strict=True)}
    profile.own_costs = {layer.name: call.own_cost for layer, call in zip(layers, calls, strict=True)}
    return profile, output


def _scores(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output that contain its scores, without auxiliary heads."""
    for name in ("logits", "logits_per_image", "out"):
        scores = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(scores, Tensor):
            return [scores]
    return list_tensors(output)


def _layers(calls: list[_Call], images: Tensor, model: Any) -> list[Layer]:
    counts, seen = Counter(call.path for call in calls), Counter[str]()
    layers = []
    for call in calls:
        name = f"{call.path}#{seen[call.path]}" if counts[call.path] > 1 else call.path
        seen[call.path] += 1
        shape = (1, *call.shape[1:]) if call.shape[:1] == images.shape[:1] else call.shape
        layer = Layer(name, type(call.module).__name__, shape, None, "", _model=model, _input=tuple(images.shape[1:]))
        layers.append(_add_layout(layer, call, images))
    return layers


def _add_layout(layer: Layer, call: _Call, images: Tensor) -> Layer:
    """Add the layout to a layer whose output has a grid for each image."""
    if call.lost:
        return replace(layer, _lost=call.lost)
    sides = tuple(images.shape[2:])
    found = layout_by_axes(call.axes, call.shape, kinds_of(len(sides)))
    if found is None or call.shape[0] != len(images) * found.frames:
        return layer
    layout, grid, extra, frames, order = found
    placement = placement_of(call.axes, grid, sides)
    even_stride = tuple(side / cells for side, cells in zip(sides, grid, strict=True))
    return replace(
        layer,
        shape=layer.shape if frames == 1 else (frames, *layer.shape[1:]),
        grid=grid,
        layout=layout,
        extra_tokens=extra,
        frames=frames,
        _order=order,
        stride=even_stride if placement is None else placement.stride,
        placement=placement,
    )


def _add_default(layers: list[Layer], forward: ForwardPass) -> Profile:
    """Create the profile with its default layer and its stages, one of which is the default layer."""
    reads = forward.graph.reads(forward.end)
    found = find_default(layers, forward)
    profile = Profile(
        replace(layer, stage=layer.name in found.stages, is_read=node is None or reads.get(node) == Reads.ALL)
        for layer, node in zip(layers, forward.nodes, strict=True)
    )
    profile.default = None if found.default is None else layers[found.default].name
    profile.is_bypassed, profile.forward = found.is_bypassed, forward
    return profile
