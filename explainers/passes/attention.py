"""Attention weights of one call, with their gradients.

Networks rarely return them: torchvision asks `nn.MultiheadAttention` for none, and fused kernels never form them. While
a pass runs, the calling thread's attention functions compute softmax(q kᵀ) v in single operations instead
(attention_ops.py): `scaled_dot_product_attention`, `multi_head_attention_forward`, and a hand-written softmax over
square scores.

Only global attention counts, among all tokens of the image: every block's weights then have the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.errors import LayerNotFound, UnsupportedModel
from explainers.findings import note_gradient, note_layer
from explainers.hooks.calls import Calls
from explainers.hooks.edit import edit_outputs
from explainers.hooks.locate import HookPoint, find_hook_point, frozen_graph, unwrap
from explainers.layers.layer import is_named_attention
from explainers.layers.layout import Grid
from explainers.layers.lookup import token_grid
from explainers.options import LayerName
from explainers.passes import attention_ops
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.targets import TargetLike

Keep = Callable[[Tensor], Tensor]
_STEM = 8
"""Most convolutions of a patch embedding; a network of more, and no module called attention, is convolutional."""


@dataclass
class Attention:
    """One attention: its module, and its weights after the softmax, [N, heads, T, T] or [N heads, T, T]."""

    path: str
    weights: Tensor


@dataclass
class AttentionRecord:
    """The attention of one pass, block by block.

    `weights` A and `gradients` d score / dA (empty where not computed) are [N, heads, T, T]: rows are queries, columns
    keys. `readout_weights` [N, T] are the mean over the tokens that the score reads after the last block: the class
    token, or all patches where they are pooled.
    """

    weights: list[Tensor]
    gradients: list[Tensor]
    readout_weights: Tensor
    grid: Grid
    extra_tokens: int

    def read(self, matrix: Tensor) -> Tensor:
        """The mean of the rows of [N, T, T] that the score reads, as maps [N, h, w]."""
        return self.to_maps((self.readout_weights[:, :, None] * matrix).sum(dim=1))

    def to_maps(self, tokens: Tensor) -> Tensor:
        """Values [N, T] of the tokens as maps [N, h, w], without class and register tokens."""
        return patches_of(tokens, self.grid, self.extra_tokens)


def patches_of(tokens: Tensor, grid: Grid, extra: int) -> Tensor:
    """Values [N, ..., T] of tokens as maps [N, ..., h, w] of the patches; a copy, which frees the other tokens."""
    return tokens[..., extra:].unflatten(-1, grid).clone()


def record_attention(model: nn.Module, images: Tensor, target: TargetLike, *, gradients: bool) -> AttentionRecord:
    """One forward pass, and a backward pass down to the first attention; without `gradients`, to the last.

    Errors   UnsupportedModel where the network has no global attention, or hides its operations
    """
    refuse_without_attention(model)
    with open_run(model, images, target) as run:
        with watched(run.network) as seen:
            total = run.score(run.forward(run.images)).sum()
        grid, extra = grid_of(run, seen)
        g = run.vjp(total, [attention.weights for attention in (seen if gradients else seen[-1:])])
    record = _record(seen, g, len(images), grid, extra)
    if gradients:
        note_gradient(torch.cat([gradient.flatten(1) for gradient in record.gradients], dim=1))
    else:
        record.gradients = []
    return record


def mean_token_gradients(model: nn.Module, images: Tensor, target: TargetLike) -> AttentionRecord:
    """As `record_attention`, with each block's gradients those of a score of its own.

    That score is what the network after the last block gives to the mean of all tokens after this block. The graph is
    detached between blocks, so one backward pass keeps them apart.

    Errors   UnsupportedModel as `record_attention`, and where the blocks are no modules of their own
    """
    refuse_without_attention(model)
    with open_run(model, images, target) as run:
        with watched(run.network, leaves=False) as seen:
            run.score_inputs()
        grid, extra = grid_of(run, seen)
        blocks = _blocks(seen)
        means: list[Tensor] = []

        def cut(output: Tensor) -> Tensor:
            means.append(output.mean(dim=1, keepdim=True).expand_as(output))
            return torch.cat(means) if len(means) == len(blocks) else output.detach()

        pictures = list(range(len(images))) * len(blocks)
        with watched(run.network) as seen, edit_outputs(run.network, dict.fromkeys(blocks, cut)):
            scores = run.score(run.forward(run.images), pictures)
        g = run.vjp(scores.sum(), [attention.weights for attention in seen])
    return _record(seen, g, len(images), grid, extra)


def _record(seen: list[Attention], gradients: list[Tensor], count: int, grid: Grid, extra: int) -> AttentionRecord:
    weights = [_by_head(attention.weights, count) for attention in seen]
    gradients = [_by_head(gradient, count) for gradient in gradients]
    return AttentionRecord(weights, gradients, _readout_weights(gradients[-1], extra), grid, extra)


def _blocks(seen: list[Attention]) -> list[str]:
    """The modules with one attention each: paths up to where they differ, or the parent of the only one."""
    paths = [attention.path.split(".") for attention in seen]
    if len(paths) == 1:
        last = paths[0][-1]
        names = [".".join(paths[0][:-1] if is_named_attention(last, "") else paths[0])]
    else:
        depth = next((d for d in range(1, max(map(len, paths))) if len({tuple(p[:d]) for p in paths}) == len(paths)), 0)
        names = [".".join(path[:depth]) for path in paths]
    if not all(names):
        listed = ", ".join(repr(attention.path) for attention in seen)
        raise UnsupportedModel(
            f"The attentions {listed} are not each in a block that is a module of its own, so there is no output of a "
            "block to read tokens from. Use score='logit'."
        )
    return names


def _by_head(tensor: Tensor, count: int) -> Tensor:
    """[N, heads, T, T], also of [N heads, T, T]."""
    tensor = at_least_float32(tensor)
    return tensor if tensor.ndim == 4 else tensor.unflatten(0, (count, -1))


def _readout_weights(gradient: Tensor, extra: int) -> Tensor:
    """A token that the score does not read has no gradient in its row of the last block, [N, heads, T, T]."""
    read = (gradient != 0).any(dim=3).any(dim=1).to(gradient.dtype)
    # A score that depends on no token: then the first, or all where the first is a patch.
    default = torch.zeros_like(read)
    default[:, : 1 if extra else None] = 1
    read = torch.where(read.any(dim=1, keepdim=True), read, default)
    return read / read.sum(dim=1, keepdim=True)


def attention_at(model: nn.Module, images: Tensor, layer: LayerName | None) -> tuple[Tensor, Grid, int]:
    """Weights [N, heads, T, T] of all attentions inside `layer`, heads in order; by default of the last attention.

    For a layer without attention it is the first attention after it, which reads the layer's output.

    Returns  the weights, the grid of the patches, the number of tokens before them
    Errors   UnsupportedModel as `record_attention`; LayerNotFound without attention inside the layer or after it
    """
    refuse_without_attention(model)
    path = None if layer is None else find_hook_point(unwrap(model), layer).path
    before: list[int] = []
    with open_run(model, images) as run:
        with watched(run.network, leaves=False) as seen:
            count: dict[LayerName, Any] = {} if path is None else {path: lambda output: before.append(len(seen))}
            with torch.no_grad(), edit_outputs(run.network, count):
                run.network(run.images)
        grid, extra = grid_of(run, seen)
    inside = [attention for attention in seen if path is not None and f"{attention.path}.".startswith(f"{path}.")]
    after = seen[-1:] if path is None else seen[before[0] :] if before else []
    chosen = inside or after[:1]
    if not chosen:
        names = ", ".join(repr(attention.path) for attention in seen)
        raise LayerNotFound(f"Layer {path!r} has no attention inside or after it. Choose one of {names}.")
    note_layer(path if inside and path is not None else chosen[0].path)
    return torch.cat([_by_head(attention.weights, len(images)) for attention in chosen], dim=1), grid, extra


def grid_of(run: Run, seen: list[Attention]) -> tuple[Grid, int]:
    """The grid of the patches and the number of tokens before them.

    Errors   UnsupportedModel where the attentions are not all global and among the same tokens
    """
    count = len(run.images)
    sizes = sorted({(attention.weights.shape[-2], attention.weights.shape[-1]) for attention in seen})
    # Windows would be among the rows, where images belong; heads may be: [N heads, T, T].
    shapes = [attention.weights.shape for attention in seen]
    rows = {shape[0] if len(shape) == 4 else shape[0] % count for shape in shapes}
    if len(sizes) == 1 and sizes[0][0] == sizes[0][1] and rows <= {0, count}:
        grid = token_grid(run.model, run.images, sizes[0][0])
        if grid is not None:
            return grid
    shown = ", ".join(f"{rows} by {columns}" for rows, columns in sizes) or "none seen"
    raise UnsupportedModel(
        f"This {type(run.model).__name__} does not attend among all its patches in every block (attention weights: "
        f"{shown}), and weights of different sizes cannot be multiplied from block to block. {_INSTEAD}"
    )


_INSTEAD = (
    "Use a class-activation map such as grad_cam, an input-gradient method such as integrated_gradients, or rise."
)


def why_not(model: nn.Module) -> str | None:
    """Why this model has no global attention in every block, as far as its modules tell; else None."""
    model = unwrap(model)
    name = type(model).__name__
    if kind := frozen_graph(model):
        return f"The model is {kind}, so its attention cannot be seen. Give the original nn.Module, or use saliency."
    modules = list(model.modules())
    for module in modules:
        if "window" in type(module).__name__.lower():
            return (
                f"{name} attends inside windows ({type(module).__name__}), not among all tokens, so attention cannot "
                f"be followed from block to block. {_INSTEAD}"
            )
    if any(is_named_attention(path, type(module).__name__) for path, module in model.named_modules()):
        return None
    convolutions = [module for module in modules if isinstance(module, nn.modules.conv._ConvNd)]
    has_norm = any(isinstance(module, (nn.LayerNorm, nn.RMSNorm)) for module in modules)
    if not has_norm or len(convolutions) > _STEM or any(module.groups > 1 for module in convolutions):
        return f"{name} has no attention among tokens, which this method needs. {_INSTEAD}"
    return None


def refuse_without_attention(model: nn.Module) -> None:
    """Refuse a model that `why_not` gives a reason against.

    Errors   UnsupportedModel
    """
    reason = why_not(model)
    if reason is not None:
        raise UnsupportedModel(reason)


@contextmanager
def watched(network: nn.Module, *, leaves: bool = True) -> Iterator[list[Attention]]:
    """Record the attention of this thread's forward pass, call by call.

    With `leaves` the first weights become the leaf from which the graph is built; all later ones are nodes of it.
    """
    seen: list[Attention] = []
    running: list[str] = []

    def keep(weights: Tensor) -> Tensor:
        if leaves and not weights.requires_grad:
            weights = weights.detach().requires_grad_()
            torch.set_grad_enabled(True)
        seen.append(Attention(running[-1] if running else "", weights))
        return weights

    def start() -> None:
        seen.clear()
        running.clear()

    def enter(name: str) -> Callable[[int, tuple[Any, ...]], Any]:
        return lambda k, args: running.append(name)

    def leave(k: int, output: Any) -> None:
        running.pop()

    with ExitStack() as stack:
        calls = Calls(network, stack, start)
        for name, module in network.named_modules():
            if name and not isinstance(module, torch.jit.ScriptModule):
                site = HookPoint(name, module)
                calls.before(stack, site, enter(name))
                calls.after(stack, site, leave)
        stack.enter_context(_Watch(keep))
        yield seen


class _Watch(TorchFunctionMode):
    """Runs the calling thread's attention functions in single operations; `keep` records their weights."""

    def __init__(self, keep: Keep) -> None:
        super().__init__()
        self.keep = keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return attention_ops.scaled_dot_product_attention(*args, **kwargs, keep=self.keep)
        if name == "multi_head_attention_forward":
            arguments = attention_ops.multi_head_arguments(args, kwargs)
            if attention_ops.extra_keys(arguments) is None:
                return attention_ops.multi_head_attention(self._attend, arguments)
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        if name == "softmax" and _is_attention(output, args[1] if len(args) > 1 else kwargs.get("dim")):
            # A clone goes on: what follows may overwrite it, and the record must not change.
            return self.keep(output).clone()
        return output

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        weights = self.keep(attention_ops.attention_weights(query, key, mask, is_causal))
        return weights @ value, weights


def _is_attention(output: Any, dim: Any) -> bool:
    """Whether a softmax over `dim` gave weights [N, heads, T, T] or [N, T, T]."""
    square = isinstance(output, Tensor) and output.ndim in (3, 4) and output.shape[-1] == output.shape[-2] > 1
    return square and dim in (-1, output.ndim - 1)
