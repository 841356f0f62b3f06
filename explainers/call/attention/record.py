"""Attention weights of one call, with their gradients.

Networks rarely return attention weights: torchvision calls `nn.MultiheadAttention` with need_weights=False, and fused
kernels never materialize them, so every attention is recorded as it runs (watch.py). Attention can be
propagated from block to block only if all attentions are global, use the same tokens of the image, and run one after
another. The last one may be a pooling, whose few learned queries read the tokens (SigLIP, AIMv2). Other networks raise
an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers.call.attention.watch import Attention, AttentionWatch, watch_attention
from explainers.call.layers import token_grid
from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.errors import BadTarget, LayerNotFound, UnsupportedModel, is_out_of_memory
from explainers.findings import note_finding, note_gradient, note_layer
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.edit import edit_outputs
from explainers.hooks.locate import find_hook_point, frozen_graph, unwrap
from explainers.layers.layer import is_named_attention
from explainers.layers.layout import Grid
from explainers.options import LayerName
from explainers.targets import TargetLike

_STEM = 8
"""Most convolutions of a patch embedding. A network with more, and no module named attention, is convolutional."""


@dataclass
class AttentionRecord:
    """The attention weights of one pass, block by block.

    `weights` A and `gradients` d score / dA (empty where not computed) are [N, heads, T, T]: rows are queries, columns
    keys. `readout_weights` [N, T] average over the tokens that the score uses after the last block: the class token, or
    all patches if they are pooled. If attention pools them, `pool` and `pool_gradient` [N, heads, Q, T] are the weights
    of its queries and their gradients, and `readout_weights` [N, Q] average over the queries that the score uses.
    `similarity` [N, T, T], or [N, Q, T] of the pooling, is the cosine of the queries and keys of the last attention,
    all heads concatenated, if it was requested.
    """

    weights: list[Tensor]
    gradients: list[Tensor]
    readout_weights: Tensor
    grid: Grid
    extra_tokens: int
    pool: Tensor | None = None
    pool_gradient: Tensor | None = None
    similarity: Tensor | None = None

    def read(self, matrix: Tensor, pool: Tensor | None = None) -> Tensor:
        """Return the mean of the rows of [N, T, T] that the score uses, as maps [N, h, w]; `pool` [N, Q, T] mixes
        the rows first.
        """
        rows = matrix if pool is None else pool @ matrix
        return self.to_maps((self.readout_weights[:, :, None] * rows).sum(dim=1))

    def to_maps(self, tokens: Tensor) -> Tensor:
        """Reshape token values [N, T] to maps [N, h, w], without class and register tokens."""
        return patches_of(tokens, self.grid, self.extra_tokens)


def patches_of(tokens: Tensor, grid: Grid, extra: int) -> Tensor:
    """Copy the patches of token values [N, ..., T] to maps [N, ..., h, w], so that the other tokens can be freed."""
    return tokens[..., extra:].unflatten(-1, grid).clone()


def record_attention(
    model: nn.Module, images: Tensor, target: TargetLike, *, gradients: bool, similarity: bool = False
) -> AttentionRecord:
    """Run a forward pass and a backward pass down to the first attention; without `gradients`, down to the last.

    `similarity` adds the cosine of queries and keys in the last attention.

    Errors   UnsupportedModel if the network has no global attention, or its operations cannot be observed
    """
    refuse_without_attention(model)

    def attention_of(run: Run) -> tuple[AttentionRecord, bool]:
        with watch_attention(run.view.network, len(run.images), operands=similarity) as watch:
            output = run.forward(run.images.clone())
            total = None
            # Without a target, weights can also be read from a backbone that returns no scores.
            with nullcontext() if gradients or target is not None else suppress(BadTarget):
                total = run.scoring.score(output).sum()
        grid, extra = grid_of(run, watch)
        seen = _without_unused_pool(watch.attentions, total)
        _refuse_side_by_side(run, seen)
        needed = [attention.weights for attention in (seen if gradients else seen[-1:])]
        g = [torch.zeros_like(a) for a in needed] if total is None else run.backward.vjp(total, needed)
        record = _record(seen, g, len(run.images), grid, extra)
        return replace(record, similarity=_similarity(run, seen[-1]) if similarity else None), total is not None

    with open_run(model, images, target) as run:
        record, has_scores = run.by_image(attention_of)
    if not has_scores:
        _note_readout(record)
    if gradients:
        note_gradient(torch.cat([gradient.flatten(1) for gradient in record.gradients], dim=1))
    else:
        record.gradients = []
    return record


def _note_readout(record: AttentionRecord) -> None:
    """Note which tokens the map is read from, since the model does not return scores that tell it."""
    if record.pool is not None:
        tokens = "the queries of its attention pooling"
    else:
        tokens = "the class token" if record.extra_tokens else "all patches"
    note_finding(
        "no_scores",
        f"The model does not return class scores, so the map shows what {tokens} attended to. To read it from another "
        "token, give a target function that uses this token.",
        {},
    )


def mean_token_gradients(model: nn.Module, images: Tensor, target: TargetLike) -> AttentionRecord:
    """Record attention like `record_attention`, with the gradients of a separate score for each block.

    A block's score is the output of the network's head for the mean of all tokens after this block. The graph is
    detached between blocks, so one backward pass computes all gradients separately.

    Errors   UnsupportedModel as `record_attention`, and if the blocks are not separate modules
    """
    refuse_without_attention(model)
    with open_run(model, images, target, several=True) as run:
        return run.by_image(_mean_token_gradients)


def _mean_token_gradients(run: Run) -> AttentionRecord:
    count = len(run.images)
    with watch_attention(run.view.network, count, leaves=False) as watch:
        run.scoring.score_inputs()
    grid, extra = grid_of(run, watch)
    blocks = _blocks(split_pool(watch.attentions)[0])
    together = [range(len(blocks))] if not run.view.is_row_by_row else [[block] for block in range(len(blocks))]
    g: list[Tensor] = []
    for chosen in together:
        means: list[Tensor] = []

        def cut(output: Tensor, chosen: Sequence[int] = chosen, means: list[Tensor] = means) -> Tensor:
            means.append(output.mean(dim=1, keepdim=True).expand_as(output))
            return torch.cat([means[i] for i in chosen]) if len(means) == len(blocks) else output.detach()

        edits = [(find_hook_point(run.view.network, block), cut) for block in blocks]
        with watch_attention(run.view.network, count) as watch, replaced_outputs(run.view.network, edits):
            scores = run.scoring.score(_run_rows(run, count * len(chosen)), [*range(count)] * len(chosen))
        seen = split_pool(watch.attentions)[0]
        g += run.backward.vjp(scores.sum(), [seen[i].weights for i in chosen])
    return _record(seen, g, count, grid, extra)


def _run_rows(run: Run, count: int) -> Any:
    """Run the network, whose last block returns `count` rows.

    Errors   UnsupportedModel if the rest of the network only accepts one row for each image
    """
    try:
        return run.forward(run.images.clone())
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedModel(
            f"After its blocks, this {type(run.view.model).__name__} does not accept {count} rows for "
            f"{len(run.images)} images: {str(error).splitlines()[0]}. Use score='logit'."
        ) from error


def _record(seen: list[Attention], gradients: list[Tensor], count: int, grid: Grid, extra: int) -> AttentionRecord:
    blocks, pooling = split_pool(seen)
    weights = [_by_head(attention.weights, count) for attention in blocks]
    gradients = [_by_head(gradient, count) for gradient in gradients]
    if pooling is None:
        return AttentionRecord(weights, gradients, _readout_weights(gradients[-1], extra), grid, extra)
    pool, readout = _by_head(pooling.weights, count), _readout_weights(gradients[-1], 0)
    return AttentionRecord(weights, gradients[:-1], readout, grid, extra, pool, gradients[-1])


def _similarity(run: Run, attention: Attention) -> Tensor:
    """Return the cosine of queries and keys [N, Q, T]: concatenated heads, as the authors of Grad-ECLIP compute it.

    Errors   UnsupportedModel if the network multiplies queries and keys by itself
    """
    if attention.operands is None:
        raise UnsupportedModel(
            f"Cannot read the queries and keys of {attention.path!r} in this {type(run.view.model).__name__}: it "
            "computes attention without torch's scaled_dot_product_attention. Use that function (in transformers: "
            "attn_implementation='sdpa'), or use le_grad, which does not need queries and keys."
        )
    query, key = (
        functional.normalize(at_least_float32(each).movedim(-3, -2).flatten(-2), dim=-1) for each in attention.operands
    )
    return query @ key.mT


def split_pool(seen: list[Attention]) -> tuple[list[Attention], Attention | None]:
    """Return the attentions of the blocks, and the attention that pools their tokens by learned queries, if any."""
    if len(seen) < 2:
        return seen, None
    *blocks, last = seen
    queries, keys = last.weights.shape[-2:]
    is_pooling = queries != keys == blocks[-1].weights.shape[-1]
    return (blocks, last) if is_pooling else (seen, None)


def _blocks(seen: list[Attention]) -> list[str]:
    """Return the modules with one attention each: the shortest distinct paths, or the parent of a single attention."""
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
            f"The attentions {listed} are not in separate block modules, so the tokens after each block cannot be "
            "read. Use score='logit'."
        )
    return names


def _by_head(tensor: Tensor, count: int) -> Tensor:
    """Return [N, heads, T, T], also from [N heads, T, T]."""
    tensor = at_least_float32(tensor)
    return tensor if tensor.ndim == 4 else tensor.unflatten(0, (count, -1))


def _without_unused_pool(seen: list[Attention], total: Tensor | None) -> list[Attention]:
    """Leave out an attention pooling that the score does not depend on: some classifiers average the tokens instead."""
    blocks, pooling = split_pool(seen)
    is_unused = pooling is not None and total is not None and not _leads_to(pooling.weights, total)
    return blocks if is_unused else seen


def _readout_weights(gradient: Tensor, extra: int) -> Tensor:
    """Return weights [N, T] of the tokens with a nonzero gradient row in the last attention, [N, heads, T, ...]."""
    read = (gradient != 0).any(dim=3).any(dim=1).to(gradient.dtype)
    # If the score does not depend on any token, use the first one, or all if the first is a patch.
    default = torch.zeros_like(read)
    default[:, : 1 if extra else None] = 1
    read = torch.where(read.any(dim=1, keepdim=True), read, default)
    return read / read.sum(dim=1, keepdim=True)


def attention_at(model: nn.Module, images: Tensor, layer: LayerName | None) -> tuple[Tensor, Grid, int]:
    """Return weights [N, heads, T, T] of all attentions inside `layer`, heads in order; default: the last attention.

    For a layer without attention, the first attention after it is used, which reads the layer's output. An attention
    that pools the tokens has weights [N, heads, Q, T] for its Q queries; it is left out if the layer has others.

    Returns  the weights, the grid of the patches, the number of tokens before them
    Errors   UnsupportedModel as `record_attention`; LayerNotFound if there is no attention inside or after the layer
    """
    refuse_without_attention(model)
    path = None if layer is None else find_hook_point(unwrap(model), layer).path

    def attention_of(run: Run) -> tuple[Tensor, Grid, int]:
        before: list[list[Attention]] = []
        with watch_attention(run.view.network, len(run.images), leaves=False) as watch:
            seen = watch.attentions
            count: dict[LayerName, Any] = {} if path is None else {path: lambda output: before.append([*seen])}
            with torch.no_grad(), edit_outputs(run.view.network, count):
                run.view.network(run.images.clone())
        grid, extra = grid_of(run, watch)
        inside = [attention for attention in seen if path is not None and f"{attention.path}.".startswith(f"{path}.")]
        after = seen[-1:] if path is None else [each for each in seen if before and each not in before[0]]
        chosen = inside or after[:1]
        if not chosen:
            names = ", ".join(repr(attention.path) for attention in seen)
            raise LayerNotFound(f"Layer {path!r} has no attention inside or after it. Choose one of {names}.")
        if len(chosen) > 1:
            chosen = split_pool(chosen)[0]
        note_layer(path if inside and path is not None else chosen[0].path)
        return torch.cat([_by_head(each.weights, len(run.images)) for each in chosen], dim=1), grid, extra

    with open_run(model, images) as run:
        return run.by_image(attention_of)


def grid_of(run: Run, watch: AttentionWatch) -> tuple[Grid, int]:
    """Return the grid of the patches and the number of tokens before them.

    Errors   UnsupportedModel unless all attentions were recorded, are global, and use the same tokens
    """
    name, seen = type(run.view.model).__name__, watch.attentions
    if watch.unseen:
        raise UnsupportedModel(
            f"Cannot read the attention weights of {watch.unseen[0]!r} in this {name}: it does not call a softmax over "
            f"its keys. {_INSTEAD}"
        )
    if not seen:
        raise UnsupportedModel(f"This {name} has no attention between tokens, which this method needs. {_INSTEAD}")
    blocks, pooling = split_pool(seen)
    for attention in seen:
        if why := _not_global(attention, len(run.images), attention is pooling):
            raise UnsupportedModel(
                f"This {name} does not use global attention in every block: {attention.path!r} {why}. This method "
                f"needs one attention weight per pair of tokens in each block. {_INSTEAD}"
            )
    sizes = sorted({attention.weights.shape[-1] for attention in blocks})
    if len(sizes) > 1:
        shown = ", ".join(f"{size} by {size}" for size in sizes)
        raise UnsupportedModel(
            f"The number of tokens differs between the blocks of this {name} ({shown}), and attention weights of "
            f"different sizes cannot be multiplied. {_INSTEAD}"
        )
    patches = token_grid(run.view, run.images, sizes[0])
    if patches is None:
        raise UnsupportedModel(
            f"The {sizes[0]} tokens of this {name} do not correspond to a grid of patches. {_INSTEAD}"
        )
    grid, extra, placement = patches
    run.view.placement = placement
    return grid, extra


def _not_global(attention: Attention, count: int, is_pooling: bool) -> str | None:
    """Describe how an attention differs from global attention over all tokens of each of `count` images, or None."""
    *rows, queries, keys = attention.weights.shape
    if queries != keys and not is_pooling:
        return f"has {queries} queries and {keys} keys"
    if len(rows) not in (1, 2) or rows[0] % count or (len(rows) == 2 and rows[0] != count):
        return f"attends within groups of {keys} tokens (weights of shape {tuple(attention.weights.shape)})"
    if attention.among is False:
        return f"has {queries} by {keys} weights that are not between all tokens, but for example channels or windows"
    if attention.changed:
        return f"modifies its weights after the softmax ({attention.changed}), for example by mixing heads"
    return None


def _refuse_side_by_side(run: Run, seen: list[Attention]) -> None:
    """Raise an error if an attention does not depend on the previous one, for example heads computed separately.

    Errors   UnsupportedModel
    """
    for earlier, later in pairwise(seen):
        if not _leads_to(earlier.weights, later.weights):
            raise UnsupportedModel(
                f"This {type(run.view.model).__name__} runs the attentions {earlier.path!r} and {later.path!r} in "
                f"parallel, so attention cannot be propagated from block to block. {_INSTEAD}"
            )


def _leads_to(earlier: Tensor, later: Tensor) -> bool:
    """Return whether the autograd graph of `later` contains `earlier`."""
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
    """Return why this model does not have global attention in every block, judged by its modules, or None."""
    model = unwrap(model)
    name = type(model).__name__
    if kind := frozen_graph(model):
        return f"The model is {kind}, so its attention cannot be read. Pass the original nn.Module, or use saliency."
    modules = list(model.modules())
    for module in modules:
        if "window" in type(module).__name__.lower():
            return (
                f"{name} uses windowed attention ({type(module).__name__}), not global attention, so attention cannot "
                f"be propagated from block to block. {_INSTEAD}"
            )
    if any(is_named_attention(path, type(module).__name__) for path, module in model.named_modules()):
        return None
    convolutions = [module for module in modules if isinstance(module, nn.modules.conv._ConvNd)]
    has_norm = any(isinstance(module, (nn.LayerNorm, nn.RMSNorm)) for module in modules)
    if not has_norm or len(convolutions) > _STEM or any(module.groups > 1 for module in convolutions):
        return f"{name} has no attention between tokens, which this method needs. {_INSTEAD}"
    return None


def refuse_without_attention(model: nn.Module) -> None:
    """Raise an error if `why_not` returns a reason for this model.

    Errors   UnsupportedModel
    """
    reason = why_not(model)
    if reason is not None:
        raise UnsupportedModel(reason)
