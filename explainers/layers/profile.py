"""A network's layers, call by call, and the layout of each output, from one forward pass.

The layout is followed from module to module (a Linear or a LayerNorm
leaves channels last, a convolution needs them first). The first image alone runs; only names and numbers are kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import LayerNotFound, NothingSpatial, UnsupportedModel
from explainers.hooks.calls import Calls
from explainers.hooks.locate import HookPoint, find_hook_point, no_inner_hooks
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial
from explainers.layers.receptive import receptive_field
from explainers.network.eval_view import EvalView, eval_view


@dataclass(frozen=True)
class Layer:
    """One call of one module in a forward pass.

    `name` is the dotted name (`name#k` for the k-th call of a module that runs repeatedly), `kind` the class name,
    `shape` the output's shape for one image, `grid` its (height, width) or None, `layout` "NCHW", "NHWC", "tokens" or
    "", `extra_tokens` the class and register tokens before the patches, `stride` input pixels per cell (rows, columns),
    `stage` True for the last outermost call at each resolution.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    grid: Grid | None
    layout: str
    extra_tokens: int = 0
    stride: tuple[float, float] | None = None
    stage: bool = False
    depth: int = field(default=0, repr=False)
    _model: Any = field(default=None, repr=False, compare=False)
    _input: tuple[int, ...] = field(default=(), repr=False, compare=False)

    def receptive_field(self, cell: Grid) -> tuple[int, int, int, int]:
        """The box (left, top, right, bottom) in input pixels that the value of `cell` (row, column) can depend on."""
        model = self._model() if self._model else None
        if model is None:
            raise LayerNotFound(f"The model of layer {self.name!r} is gone. Call list_layers(model, images) again.")
        if self.grid is None:
            raise NothingSpatial(nothing_spatial(self.name, self.shape))
        images = next((p for p in model.parameters()), torch.zeros(())).new_zeros(1, *self._input)
        network = eval_view(model).network
        return receptive_field(network, images, layout_of(self, find_hook_point(network, self.name)), cell)


def layout_of(layer: Layer, point: HookPoint) -> LayerLayout:
    """The layer's layout, with the point of the network where its hook goes."""
    return LayerLayout(point.name, point.module, point.call, layer.layout, layer.extra_tokens, layer.grid)


class Profile(list[Layer]):
    """All calls of a model's layers in one forward pass; `default` is the default layer, once it was looked for."""

    default: str | None = None


# One profile a model and input size, forgotten with the model. It holds names and numbers, no tensor.
_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, Profile]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def known_profile(view: EvalView, images: Tensor) -> Profile | None:
    """The model's layers where a forward pass has already shown them, without any work; else None."""
    with _lock:
        return _known.get(view.model, {}).get((images.shape[1:], view.modules))


def profile(model: nn.Module | EvalView, images: Tensor) -> Profile:
    """The model's layers in a forward pass of the first image, remembered for as long as the model lives.

    Errors   UnsupportedModel for scripted, traced and exported models
    """
    view = model if isinstance(model, EvalView) else eval_view(model)
    if view.kind is not None:
        raise UnsupportedModel(no_inner_hooks(view.kind))
    key = images.shape[1:], view.modules
    with _lock:
        layers = _known.get(view.model, {}).get(key)
    if layers is None:
        layers = Profile(_mark_stages(_trace(view.network, images[:1], weakref.ref(view.model))))
        with _lock:
            profiles = _known.setdefault(view.model, {})
            if len(profiles) >= 16:
                profiles.clear()
            profiles[key] = layers
    return layers


def always_channels_first(view: EvalView) -> bool:
    """No module that could leave channels last or turn the picture into tokens."""
    return not view.attributes & _ATTENTION and not _move_channels(view.classes)


@lru_cache(maxsize=256)
def _move_channels(kinds: frozenset[type[nn.Module]]) -> bool:
    return any(
        issubclass(kind, (nn.LayerNorm, nn.RMSNorm, nn.TransformerEncoderLayer))
        or kind.__name__ in _MOVES
        or is_named_attention("", kind.__name__)
        for kind in kinds
    )


# As many class and register tokens as any network is known to put before its patches, and room to spare.
EXTRA_TOKENS = 16
_ATTENTION = {"attn", "attention", "self_attn", "self_attention", "mha", "mhsa"}
_MOVES = {"Permute", "SwapAxes", "WindowPartition", "WindowDepartition"}
_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.Upsample,
    nn.PixelShuffle,
)


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def is_attention(layer: Layer) -> bool:
    """Whether this call is one of an attention, by the class or the name of its module."""
    return is_named_attention(layer.name.partition("#")[0], layer.kind)


def is_named_attention(name: str, kind: str) -> bool:
    """Whether a module's dotted name or class calls it attention."""
    own = name.rpartition(".")[2]
    return own in _ATTENTION or any(word in kind.lower() for word in ("attention", "attn"))


class _Tracer:
    """Follows one forward pass: the calls, and where the channels of a 4-d tensor stand."""

    def __init__(self, size: Grid) -> None:
        self.calls: list[tuple[str, nn.Module, Any]] = []
        self.states: list[tuple[str, Grid | None]] = []
        self.last = "NCHW"
        self.size = self.grid = size
        self.pictures = 0
        self.tokens = 0
        self.in_windows = False

    def watch(self, name: str, module: nn.Module) -> Callable[[int, Any], None]:
        return lambda k, output: self.after(name, module, output)

    def after(self, name: str, module: nn.Module, output: Any) -> None:
        layout = self.last
        if isinstance(output, Tensor):
            if not any(True for _ in module.children()):
                self._follow_layout(module, output)
            layout = self._picture(module, output) if output.ndim == 4 else self.last
            if output.ndim == 3 and len(output) == 1:
                self._sequence(output.shape[1])
        self.calls.append((name, module, output.shape if isinstance(output, Tensor) else None))
        self.states.append((layout, self.grid))

    def _picture(self, module: nn.Module, output: Tensor) -> str:
        """The layout of a 4-d output, "" where it is none of the picture: windows, or tokens split into heads."""
        if _kind(module) in ("WindowPartition", "WindowDepartition"):
            self.in_windows = _kind(module) == "WindowPartition"
        if isinstance(module, _FIRST):
            self.tokens = 0
        if self.in_windows or (self.tokens and self.tokens in output.shape[1:]):
            return ""
        self.pictures += 1
        if self.last == "NCHW":
            self.grid = (output.shape[2], output.shape[3])
        return self.last

    def _sequence(self, count: int) -> None:
        if not self.pictures:
            self.grid = _patches(self.size, count) or self.grid
        if 0 <= count - self.grid[0] * self.grid[1] <= EXTRA_TOKENS:
            self.tokens = count

    def _follow_layout(self, module: nn.Module, output: Tensor) -> None:
        if isinstance(module, _FIRST) or _kind(module) == "WindowDepartition":
            self.last = "NCHW"
        elif isinstance(module, nn.Linear):
            self.last = "NHWC"
        elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
            # torchvision's LayerNorm2d permutes there and back: only the stock forward leaves channels last.
            self.last = "NHWC" if type(module).forward is nn.LayerNorm.forward else "NCHW"
        elif _kind(module) == "Permute":
            dims = tuple(getattr(module, "dims", ()))
            self.last = {(0, 3, 1, 2): "NCHW", (0, 2, 3, 1): "NHWC"}.get(dims, self.last)


def _patches(size: Grid, count: int) -> Grid | None:
    """The grid of square patches that leaves the fewest tokens over, where the network cuts the picture by itself."""
    grids = [(size[0] // p, size[1] // p) for p in range(2, min(size) + 1) if size[0] % p == size[1] % p == 0]
    fitting = [grid for grid in grids if 0 <= count - grid[0] * grid[1] <= EXTRA_TOKENS]
    return max(fitting, key=lambda grid: grid[0] * grid[1], default=None)


@torch.no_grad()
def _trace(network: nn.Module, images: Tensor, model: Any) -> list[Layer]:
    tracer = _Tracer((images.shape[-2], images.shape[-1]))
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        calls = Calls(network, stack)
        for name, module in network.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                calls.after(stack, HookPoint(name, module), tracer.watch(name, module))
        network(images.clone())
    counts: dict[str, int] = {}
    for name, _, _ in tracer.calls:
        counts[name] = counts.get(name, 0) + 1
    seen: dict[str, int] = {}
    layers = []
    for (name, module, shape), (layout, grid) in zip(tracer.calls, tracer.states, strict=True):
        k = seen[name] = seen.get(name, -1) + 1
        layer = Layer(
            f"{name}#{k}" if counts[name] > 1 else name,
            _kind(module),
            tuple(shape or ()),
            None,
            "",
            depth=name.count(".") + bool(name),
            _model=model,
            _input=tuple(images.shape[1:]),
        )
        if name:
            layers.append(_located(layer, layout, grid, images) if shape is not None else layer)
    return layers


def _located(layer: Layer, layout: str, grid: Grid | None, images: Tensor) -> Layer:
    shape, height, width = layer.shape, images.shape[-2], images.shape[-1]
    extra = 0
    if not layout:
        return layer
    if len(shape) == 4:
        found = (shape[1], shape[2]) if layout == "NHWC" else (shape[2], shape[3])
    elif (
        len(shape) == 3
        and grid is not None
        and shape[0] == 1
        and 0 <= shape[1] - grid[0] * grid[1] <= EXTRA_TOKENS
        and grid[0] * grid[1] > 1
    ):
        # Tokens of the last grid seen before them, with class and register tokens in front.
        found, layout, extra = grid, "tokens", shape[1] - grid[0] * grid[1]
    else:
        return layer
    if shape[0] != 1 or found[0] > height or found[1] > width:
        return layer  # windows, or a head's own batch: not a picture of this image
    return replace(layer, grid=found, layout=layout, extra_tokens=extra, stride=(height / found[0], width / found[1]))


def is_spatial(layer: Layer) -> bool:
    return layer.grid is not None and layer.grid != (1, 1)


def _mark_stages(layers: list[Layer]) -> list[Layer]:
    """Mark the last outermost call at each resolution."""
    chosen: dict[Grid, str] = {}
    for layer in _outermost(layers, ""):
        if layer.grid is not None and is_spatial(layer) and layer.layout != "tokens" and not _rearranges(layer):
            chosen[layer.grid] = layer.name
    return [replace(layer, stage=layer.name in chosen.values()) for layer in layers]


def _rearranges(layer: Layer) -> bool:
    return layer.kind.startswith("Adaptive") or layer.kind in ("Permute", "Dropout", "Identity")


def _outermost(layers: list[Layer], prefix: str) -> list[Layer]:
    """Calls that stand directly below `prefix`, in order; containers that span several resolutions are opened."""
    called = {layer.name.partition("#")[0] for layer in layers}

    def is_inside_another(path: str) -> bool:
        parts = path[len(prefix) :].split(".")
        return any(prefix + ".".join(parts[:n]) in called for n in range(1, len(parts)))

    found: list[Layer] = []
    for layer in layers:
        path = layer.name.partition("#")[0]
        if is_inside_another(path):
            continue
        children = [each for each in layers if each.name.startswith(path + ".")]
        below = _outermost(children, path + ".") if children else []
        grids = {each.grid for each in below if each.grid is not None and is_spatial(each)}
        # A Sequential of stages is a road through several resolutions, a residual block or a down-sampling pair is one
        # step; whatever holds nearly all calls is the network itself in a wrapper.
        nested = len(below) < len(children) or len(children) > 0.5 * len(layers)
        road = layer.kind == "Sequential" and is_spatial(layer) and nested
        wrapper = len(children) > 0.8 * len(layers)
        found.extend(below if len(grids) > 1 and (road or wrapper) else [layer])
    return found
