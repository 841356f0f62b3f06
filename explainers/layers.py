"""Which layers a network has, call by call, and how a layer's tensor lies in space.

Everything comes from one real forward pass of the first image: names and order of the calls, shapes, and the layout,
which is followed from module to module (a Linear or a LayerNorm leaves channels last, a convolution needs them first).
"""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .errors import LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
from .hooks import Calls
from .network import ready
from .records import ran_repeatedly
from .sites import LayerName, Site, find_site, frozen_graph, no_inner_hooks, unwrap

Grid = tuple[int, int]


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
        from .receptive import receptive_field

        model = self._model() if self._model else None
        if model is None:
            raise LayerNotFound(f"The model of layer {self.name!r} is gone. Call list_layers(model, images) again.")
        images = next((p for p in model.parameters()), torch.zeros(())).new_zeros(1, *self._input)
        return receptive_field(model, images, self.name, cell)


def list_layers(model: nn.Module, images: Tensor, *, spatial: bool = False) -> list[Layer]:
    """All layers of the model, one entry a call, in the order of the calls; with `spatial` only those with a grid >
    1x1.

    Returns  list of `Layer`, from one forward pass of the first image
    Errors   UnsupportedModel for scripted, traced and exported models, whose inner layers take no hooks
    """
    layers = _profile(model, images)
    return [layer for layer in layers if not spatial or _is_spatial(layer)]


def default_layer(model: nn.Module, images: Tensor) -> str:
    """The last stage with a grid before pooling or classifier: `layer4`, `features`, `norm`, a ViT's last `ln_1`.

    Returns  its name; after the last block of a transformer only the class token is read, so there it is the normalised
             input of that block's attention, the last place where patches still count
    Errors   NothingSpatial when no layer has a grid larger than 1x1; UnsupportedModel as `list_layers`
    """
    layers = _profile(model, images)
    tokens = _last_attention_input(layers)
    if tokens is not None:
        return tokens.name
    stages = [layer for layer in layers if layer.stage and _is_spatial(layer)]
    if not stages:
        raise NothingSpatial(
            f"No layer of this {type(model).__name__} has a grid larger than 1x1 for images of shape "
            f"{tuple(images.shape)}. "
            "Give larger images, or use an input-gradient method such as saliency."
        )
    last = stages[-1]
    # `features.7` is the last step of `features`: the same tensor under the name that people use.
    parents = [
        layer
        for layer in layers
        if last.name.startswith(f"{layer.name}.")
        and layer.name
        and layer.shape == last.shape
        and layer.layout == last.layout
        and "#" not in layer.name
    ]
    return min(parents, key=lambda layer: layer.depth, default=last).name


@dataclass(frozen=True)
class Place:
    """A layer that a pass reads: resolved name and layout."""

    name: str
    layout: str
    extra_tokens: int = 0
    grid: Grid | None = None

    def to_maps(self, tensor: Tensor) -> Tensor:
        """The layer's tensor as [N, K, h, w]."""
        if self.layout == "NHWC":
            return tensor.permute(0, 3, 1, 2)
        if self.layout == "tokens" and self.grid is not None:
            patches = tensor[:, self.extra_tokens :].transpose(1, 2)
            return patches.unflatten(2, self.grid)
        return tensor

    def from_maps(self, maps: Tensor, like: Tensor) -> Tensor:
        """Maps [N, K, h, w] in the layer's own layout and dtype; class and register tokens are those of `like`."""
        if self.layout == "NHWC":
            return maps.permute(0, 2, 3, 1).to(like)
        if self.layout == "tokens":
            patches = maps.flatten(2).transpose(1, 2).to(like)
            return torch.cat([like[:, : self.extra_tokens], patches], dim=1)
        return maps.to(like)


def place(
    model: nn.Module,
    images: Tensor,
    layer: LayerName | None,
    *,
    counted: bool = False,
    network: nn.Module | None = None,
) -> Place:
    """Find the layer in the user's model and its layout; `None` is the default layer.

    A pass that runs the whole network counts the layer's calls itself; for one that ends at the layer, `counted`
    looks them up in a profile. `network` is the model as `ready` gave it, where that is known.

    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    """
    model = unwrap(model)
    if kind := frozen_graph(model):
        raise UnsupportedModel(no_inner_hooks(kind))
    if layer is None:
        layer = default_layer(model, images)
    if isinstance(layer, nn.Module):
        # A compiled inner module is replaced by the module in it when the network runs: so is its name.
        layer = find_site(model, layer).name.replace("_orig_mod.", "").removesuffix("._orig_mod")
    network = ready(model) if network is None else network
    site = find_site(network, layer)
    if not counted and _always_channels_first(network):
        return Place(site.name, "NCHW")
    found = [each for each in _profile(model, images) if each.name.partition("#")[0] == site.path]
    named = [each for each in found if each.name == site.name]
    if not named and len(found) > 1 and site.call is None:
        raise LayerRanRepeatedly(ran_repeatedly(site.path, len(found)))
    if not named or not named[0].shape:
        return Place(site.name, "NCHW")  # it did not run, or gives no tensor: the pass says so
    if named[0].grid is None:
        raise NothingSpatial(nothing_spatial(site.name, named[0].shape))
    return Place(site.name, named[0].layout, named[0].extra_tokens, named[0].grid)


def channel_axis(layout: str) -> int:
    """Where the channels stand in a layer's tensor of that layout."""
    return {"NHWC": 3, "tokens": 2}.get(layout, 1)


def nothing_spatial(name: str, shape: tuple[int, ...]) -> str:
    """The sentence for a layer that has no grid."""
    return (
        f"Layer {name!r} gives {tuple(shape)}: no height and width are left to draw a map on. "
        "Choose a layer from list_layers(model, images, spatial=True)."
    )


# One profile a model and input size, forgotten with the model. It holds names and numbers, no tensor.
_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, list[Layer]]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def known_layers(model: nn.Module, images: Tensor) -> list[Layer]:
    """The model's layers where a forward pass has already shown them; else none, without any work."""
    original, key = _key(model, images)
    with _lock:
        return _known.get(original, {}).get(key, [])


def _key(model: nn.Module, images: Tensor) -> tuple[nn.Module, Any]:
    original = unwrap(model)
    return original, (tuple(images.shape[1:]), tuple(map(id, original.modules())))


def _profile(model: nn.Module, images: Tensor) -> list[Layer]:
    network = ready(model)
    if kind := frozen_graph(network):
        raise UnsupportedModel(no_inner_hooks(kind))
    found = known_layers(model, images)
    if not found:
        original, key = _key(model, images)
        found = _mark_stages(_trace(network, images[:1], weakref.ref(original)))
        with _lock:
            profiles = _known.setdefault(original, {})
            if len(profiles) >= 16:
                profiles.clear()
            profiles[key] = found
    return found


def _always_channels_first(model: nn.Module) -> bool:
    """No module that could leave channels last or turn the picture into tokens."""
    return not any(
        isinstance(m, (nn.LayerNorm, nn.MultiheadAttention, nn.TransformerEncoderLayer)) or _kind(m) in _MOVES
        for m in model.modules()
    )


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


class _Tracer:
    """Follows one forward pass: the calls, and where the channels of a 4-d tensor stand."""

    def __init__(self, size: Grid) -> None:
        self.calls: list[tuple[str, nn.Module, Any]] = []
        self.states: list[tuple[str, Grid | None]] = []
        self.last = "NCHW"
        self.grid: Grid = size

    def after(self, name: str, module: nn.Module, output: Any) -> None:
        if isinstance(output, Tensor):
            if not any(True for _ in module.children()):
                self._follow(module, output)
            if output.ndim == 4 and self.last == "NCHW":
                self.grid = (output.shape[2], output.shape[3])
        self.calls.append((name, module, output.shape if isinstance(output, Tensor) else None))
        self.states.append((self.last, self.grid))

    def _follow(self, module: nn.Module, output: Tensor) -> None:
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


@torch.no_grad()
def _trace(network: nn.Module, images: Tensor, model: Any) -> list[Layer]:
    tracer = _Tracer((images.shape[-2], images.shape[-1]))
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        calls = Calls(network, stack)
        for name, module in network.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                calls.after(stack, Site(name, module), lambda k, output, n=name, m=module: tracer.after(n, m, output))  # type: ignore[misc]
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
    if len(shape) == 4:
        found = (shape[1], shape[2]) if layout == "NHWC" else (shape[2], shape[3])
    elif (
        len(shape) == 3
        and grid is not None
        and shape[0] == 1
        and 0 <= shape[1] - grid[0] * grid[1] <= 16
        and grid[0] * grid[1] > 1
    ):
        # Tokens of the last grid seen before them, with class and register tokens in front.
        found, layout, extra = grid, "tokens", shape[1] - grid[0] * grid[1]
    else:
        return layer
    if shape[0] != 1 or found[0] > height or found[1] > width:
        return layer  # windows, or a head's own batch: not a picture of this image
    return replace(layer, grid=found, layout=layout, extra_tokens=extra, stride=(height / found[0], width / found[1]))


def _is_spatial(layer: Layer) -> bool:
    return layer.grid is not None and layer.grid != (1, 1)


def _mark_stages(layers: list[Layer]) -> list[Layer]:
    """Mark the last outermost call at each resolution."""
    chosen: dict[Grid, str] = {}
    for layer in _outermost(layers, ""):
        if layer.grid is not None and _is_spatial(layer) and layer.layout != "tokens" and not _only_moves(layer):
            chosen[layer.grid] = layer.name
    return [replace(layer, stage=layer.name in chosen.values()) for layer in layers]


def _only_moves(layer: Layer) -> bool:
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
        grids = {each.grid for each in below if each.grid is not None and _is_spatial(each)}
        # A Sequential of stages is a road through several resolutions, a residual block or a down-sampling pair is one
        # step; whatever holds nearly all calls is the network itself in a wrapper.
        nested = len(below) < len(children) or len(children) > 0.5 * len(layers)
        road = layer.kind == "Sequential" and _is_spatial(layer) and nested
        wrapper = len(children) > 0.8 * len(layers)
        found.extend(below if len(grids) > 1 and (road or wrapper) else [layer])
    return found


def _last_attention_input(layers: list[Layer]) -> Layer | None:
    """The layer just before the last attention over tokens with a class token, where no picture comes after it."""
    last_grid = max(
        (i for i, each in enumerate(layers) if each.layout in ("NCHW", "NHWC") and _is_spatial(each)), default=-1
    )
    attention = [i for i, each in enumerate(layers) if "Attention" in each.kind and i > last_grid]
    for i in reversed(attention):
        before = [each for each in layers[:i] if each.layout == "tokens"]
        if before:
            return before[-1]
    return None
