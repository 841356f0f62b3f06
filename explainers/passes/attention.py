"""Attention weights of one call, with their gradients.

Networks rarely return them: torchvision asks `nn.MultiheadAttention` for none, and fused kernels never form them, so
every attention is recorded as it runs (attention_watch.py). They can be followed from block to block where all of them
are global, among the same tokens of the image, and one after another; anything else is refused, and never followed in
part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import LayerNotFound, UnsupportedModel
from explainers.findings import note_gradient, note_layer
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.edit import edit_outputs
from explainers.hooks.locate import find_hook_point, frozen_graph, unwrap
from explainers.layers.layer import is_named_attention
from explainers.layers.layout import Grid
from explainers.layers.lookup import token_grid
from explainers.options import LayerName
from explainers.passes.attention_watch import Attention, Seen, watched
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.targets import TargetLike

_STEM = 8
"""Most convolutions of a patch embedding; a network of more, and no module called attention, is convolutional."""


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
        with watched(run.network, len(images)) as watch:
            total = run.score(run.forward(run.images)).sum()
        grid, extra = grid_of(run, watch)
        seen = watch.attentions
        _refuse_side_by_side(run, seen)
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
        with watched(run.network, len(images), leaves=False) as watch:
            run.score_inputs()
        grid, extra = grid_of(run, watch)
        blocks = _blocks(watch.attentions)
        means: list[Tensor] = []

        def cut(output: Tensor) -> Tensor:
            means.append(output.mean(dim=1, keepdim=True).expand_as(output))
            return torch.cat(means) if len(means) == len(blocks) else output.detach()

        pictures = list(range(len(images))) * len(blocks)
        edits = [(find_hook_point(run.network, block), cut) for block in blocks]
        with watched(run.network, len(images)) as watch, replaced_outputs(run.network, edits):
            scores = run.score(run.forward(run.images), pictures)
        seen = watch.attentions
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
    before: list[list[Attention]] = []
    with open_run(model, images) as run:
        with watched(run.network, len(images), leaves=False) as watch:
            seen = watch.attentions
            count: dict[LayerName, Any] = {} if path is None else {path: lambda output: before.append([*seen])}
            with torch.no_grad(), edit_outputs(run.network, count):
                run.network(run.images)
        grid, extra = grid_of(run, watch)
    inside = [attention for attention in seen if path is not None and f"{attention.path}.".startswith(f"{path}.")]
    after = seen[-1:] if path is None else [each for each in seen if before and each not in before[0]]
    chosen = inside or after[:1]
    if not chosen:
        names = ", ".join(repr(attention.path) for attention in seen)
        raise LayerNotFound(f"Layer {path!r} has no attention inside or after it. Choose one of {names}.")
    note_layer(path if inside and path is not None else chosen[0].path)
    return torch.cat([_by_head(attention.weights, len(images)) for attention in chosen], dim=1), grid, extra


def grid_of(run: Run, watch: Seen) -> tuple[Grid, int]:
    """The grid of the patches and the number of tokens before them.

    Errors   UnsupportedModel where the attentions are not all seen, all global and all among the same tokens
    """
    name, seen = type(run.model).__name__, watch.attentions
    if watch.unseen:
        raise UnsupportedModel(
            f"This {name} computes the attention in {watch.unseen[0]!r} without a softmax over its keys that could be "
            f"seen, so its weights cannot be read. {_INSTEAD}"
        )
    if not seen:
        raise UnsupportedModel(f"This {name} has no attention among tokens, which this method needs. {_INSTEAD}")
    for attention in seen:
        if why := _not_global(attention, len(run.images)):
            raise UnsupportedModel(
                f"This {name} does not attend among all its patches in every block: {attention.path!r} {why}. "
                f"Attention can be followed only where each block has one weight for each pair of tokens. {_INSTEAD}"
            )
    sizes = sorted({attention.weights.shape[-1] for attention in seen})
    if len(sizes) > 1:
        shown = ", ".join(f"{size} by {size}" for size in sizes)
        raise UnsupportedModel(
            f"This {name} attends among different numbers of tokens from block to block ({shown}), and weights of "
            f"different sizes cannot be multiplied. {_INSTEAD}"
        )
    grid = token_grid(run.model, run.images, sizes[0])
    if grid is None:
        raise UnsupportedModel(
            f"This {name} attends among {sizes[0]} tokens, which are the patches of no grid. {_INSTEAD}"
        )
    return grid


def _not_global(attention: Attention, count: int) -> str | None:
    """What an attention does instead of attending once among all tokens of each of `count` pictures; else None."""
    *rows, queries, keys = attention.weights.shape
    if queries != keys:
        return f"attends {queries} queries among {keys} keys"
    if len(rows) not in (1, 2) or rows[0] % count or (len(rows) == 2 and rows[0] != count):
        return f"attends in parts of {keys} tokens (weights of shape {tuple(attention.weights.shape)})"
    if attention.among is False:
        return f"attends {queries} by {keys} among something else than all its tokens, such as channels or windows"
    if attention.changed:
        return f"changes its weights after the softmax ({attention.changed}), for example by mixing heads"
    return None


def _refuse_side_by_side(run: Run, seen: list[Attention]) -> None:
    """Refuse attentions of which one does not read what the one before it gave, such as heads computed one by one.

    Errors   UnsupportedModel
    """
    for earlier, later in pairwise(seen):
        if not _leads_to(earlier.weights, later.weights):
            raise UnsupportedModel(
                f"This {type(run.model).__name__} runs the attentions {earlier.path!r} and {later.path!r} side by "
                f"side, so there is no way through all of them from block to block. {_INSTEAD}"
            )


def _leads_to(earlier: Tensor, later: Tensor) -> bool:
    """Whether the graph behind `later` holds `earlier`."""
    stack, known = [later.grad_fn], set[Any]()
    while stack:
        node = stack.pop()
        if node is None or node in known:
            continue
        if node is earlier.grad_fn or getattr(node, "variable", None) is earlier:
            return True
        known.add(node)
        stack.extend(parent for parent, _ in node.next_functions)
    return False


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
