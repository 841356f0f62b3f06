"""The profile of a network, kept for its lifetime: one per size of its images, valid until a setting changes.

A network that decides by the image has one for each of the last few images.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import eval_view
from explainers.call.forward_wrapper import BatchSizeRefused, ForwardWrapper
from explainers.call.images import check_channel_count
from explainers.call.rows import note_reads, run_rows_correctly
from explainers.call.snapshot import Settings, Snapshot, read_settings, read_values
from explainers.call.view import EvalView
from explainers.errors import ExplainerError, UnsupportedModel, is_out_of_memory
from explainers.hooks.locate import no_inner_hooks
from explainers.layers.profile import Profile, check_frames, trace_layers
from explainers.probe.behavior import Look, watch


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
    from explainers.unusual.content import content_key  # only for networks that decide by the image

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
        size, traced = view.known.pop("traced", (None, None))
        traced = traced if size == images.shape[1:] and not view.is_row_by_row else None
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

    def run(network: nn.Module, batch: Tensor) -> tuple[Any, str]:
        if view.kind is None and network is view.network:
            try:
                found, output = trace_layers(network, batch, _network_of(view))
            except Exception:
                return watch(network, batch)
            if all(each.frames == 1 for each in found):
                view.known["traced"] = batch.shape[1:], found
            view.known[first_output] = batch, output
            return output, found.reads_image
        return watch(network, batch)

    return run


def first_output(view: EvalView, image: Tensor) -> Any:
    """Return the network's output for an image [1, C, H, W] if its first pass in this call was that of the image."""
    seen, output = view.known.get(first_output, (None, None))
    return output if seen is not None and not view.is_row_by_row and torch.equal(seen, image) else None


def _network_of(view: EvalView) -> Callable[[], nn.Module | None]:
    """Return a function that returns the network of the model in a later call, or None if it no longer exists."""
    # Layers find their receptive fields later, when the copy of a sharded model no longer exists.
    here = weakref.ref(view.given if view.is_gathered else view.model)

    def network() -> nn.Module | None:
        model = here()
        return None if model is None else eval_view(model).network

    return network


def _compute_profile(view: EvalView, images: Tensor) -> Profile:
    """Profile the first image, or all images if the network does not accept another batch size."""
    model = _network_of(view)
    try:
        found, _ = trace_layers(view.network, images[:1], model)
        return check_frames(view.network, images, model, found) if any(each.frames > 1 for each in found) else found
    except Exception as error:
        refused = isinstance(error, ExplainerError) and not isinstance(error, BatchSizeRefused)
        if len(images) == 1 or refused or is_out_of_memory(error):
            raise
    return trace_layers(view.network, images, model)[0]
