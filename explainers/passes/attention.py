"""Attention weights of one call: computed from queries and keys as the network runs, so that gradients reach them.

Networks rarely hand their weights out: torchvision asks `nn.MultiheadAttention` for none, and fused kernels never have
them. Here the calling thread's own attention functions compute softmax(q k) v in plain steps while a pass runs:
`scaled_dot_product_attention`, `multi_head_attention_forward`, and a softmax over square scores written by hand.

Only attention among all tokens of the picture counts: from block to block the weights are then matrices of one size.
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
from explainers.layers.layout import Grid
from explainers.layers.lookup import token_grid
from explainers.layers.profile import speaks_of_attention
from explainers.options import LayerName
from explainers.passes import attention_ops
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.targets import TargetLike

Keep = Callable[[Tensor], Tensor]
_STEM = 8
"""A patch embedding has no more convolutions; a network of more, with nothing called attention, is convolutional."""


@dataclass
class Attention:
    """One attention: the module in which it ran, and its weights after the softmax, [N, heads, T, T]."""

    path: str
    weights: Tensor


@dataclass
class Attended:
    """What one pass showed of a transformer, block by block.

    `weights` and `gradients` (d score / d weights, empty where they were not asked for) are [N, heads, T, T], rows the
    tokens that attend and columns those attended to; `readers` [N, T] shares out one among the tokens that the score
    reads after the last block: the class token, or all patches where they are pooled.
    """

    weights: list[Tensor]
    gradients: list[Tensor]
    readout_weights: Tensor
    grid: Grid
    extra_tokens: int

    def read(self, mixed: Tensor) -> Tensor:
        """The rows of [N, T, T] that the score reads, averaged, as maps [N, h, w]."""
        return self.to_maps((self.readout_weights[:, :, None] * mixed).sum(dim=1))

    def to_maps(self, tokens: Tensor) -> Tensor:
        """Values [N, T] of the tokens as maps [N, h, w], class and register tokens left out."""
        return patches_of(tokens, self.grid, self.extra_tokens)


def patches_of(tokens: Tensor, grid: Grid, extra: int) -> Tensor:
    """Values [N, ..., T] of tokens as maps [N, ..., h, w] of the patches among them; a copy, no view of all tokens."""
    return tokens[..., extra:].unflatten(-1, grid).clone()


def attended(model: nn.Module, images: Tensor, target: TargetLike, *, gradients: bool) -> Attended:
    """One forward pass, and a backward pass down to the first attention, or, without `gradients`, to the last.

    Errors   UnsupportedModel where the network does not attend among all tokens, or hides its operations
    """
    refuse_without_attention(model)
    with open_run(model, images, target) as run:
        with watched(run.network) as seen:
            total = run.score(run.forward(run.images)).sum()
        grid, extra = grid_of(run, seen)
        leaves = [each.weights for each in (seen if gradients else seen[-1:])]
        found = run.vjp(total, leaves)
    count = len(images)
    ours = [_by_head(each.weights, count) for each in seen]
    theirs = [_by_head(each, count) for each in found]
    if gradients:
        note_gradient(torch.cat([each.flatten(1) for each in theirs], dim=1))
    return Attended(ours, theirs if gradients else [], _readout_weights(theirs[-1], extra), grid, extra)


def mean_token_gradients(model: nn.Module, images: Tensor, target: TargetLike) -> Attended:
    """As `attended`, each block's gradients those of a score of its own.

    That score is what the rest of the network after the last block gives to the mean of all tokens after the block in
    question. Between blocks the graph is cut, so one backward pass keeps them apart.

    Errors   UnsupportedModel as `attended`, and where the blocks are no modules of their own
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
        found = run.vjp(scores.sum(), [each.weights for each in seen])
    count = len(images)
    theirs = [_by_head(each, count) for each in found]
    return Attended(
        [_by_head(each.weights, count) for each in seen], theirs, _readout_weights(theirs[-1], extra), grid, extra
    )


def _blocks(seen: list[Attention]) -> list[str]:
    """The modules that hold one attention each: the names up to where they differ; around a single one its parent."""
    paths = [each.path.split(".") for each in seen]
    if len(paths) == 1:
        last = paths[0][-1]
        names = [".".join(paths[0][:-1] if speaks_of_attention(last, "") else paths[0])]
    else:
        depth = next((d for d in range(1, max(map(len, paths))) if len({tuple(p[:d]) for p in paths}) == len(paths)), 0)
        names = [".".join(path[:depth]) for path in paths]
    if not all(names):
        listed = ", ".join(repr(each.path) for each in seen)
        raise UnsupportedModel(
            f"The attentions {listed} are not each inside a block that is a module of its own, so no tokens stand "
            "between blocks. Use score='logit'."
        )
    return names


def _by_head(tensor: Tensor, count: int) -> Tensor:
    tensor = at_least_float32(tensor)
    return tensor if tensor.ndim == 4 else tensor.unflatten(0, (count, -1))


def _readout_weights(gradient: Tensor, extra: int) -> Tensor:
    """A token that nothing reads after the last block has no gradient in its row there."""
    read = (gradient != 0).any(dim=3).any(dim=1).to(gradient.dtype)
    # A score that depends on nothing reads none: then the first token, or all where it is a patch.
    otherwise = torch.zeros_like(read)
    otherwise[:, : 1 if extra else None] = 1
    read = torch.where(read.any(dim=1, keepdim=True), read, otherwise)
    return read / read.sum(dim=1, keepdim=True)


def attention_at(model: nn.Module, images: Tensor, layer: LayerName | None) -> tuple[Tensor, Grid, int]:
    """Weights [N, heads, T, T] of all attentions inside `layer`, heads of the first one first; by default of the last.

    Where nothing attends inside the layer, it is the first attention after it: the one that reads it.

    Returns  the weights, the grid of the patches, the number of tokens before them
    Errors   UnsupportedModel as `attended`; LayerNotFound where nothing attends inside the layer or after it
    """
    refuse_without_attention(model)
    path = None if layer is None else find_hook_point(unwrap(model), layer).path
    before: list[int] = []
    with open_run(model, images) as run:
        with watched(run.network, leaves=False) as seen:
            mark: dict[LayerName, Any] = {} if path is None else {path: lambda output: before.append(len(seen))}
            with torch.no_grad(), edit_outputs(run.network, mark):
                run.network(run.images)
        grid, extra = grid_of(run, seen)
    inside = [each for each in seen if path is not None and f"{each.path}.".startswith(f"{path}.")]
    after = seen[-1:] if path is None else seen[before[0] :] if before else []
    chosen = inside or after[:1]
    if not chosen:
        names = ", ".join(repr(each.path) for each in seen)
        raise LayerNotFound(f"Nothing attends inside layer {path!r} or after it. Choose one of {names}.")
    note_layer(path if inside and path is not None else chosen[0].path)
    return torch.cat([_by_head(each.weights, len(images)) for each in chosen], dim=1), grid, extra


def grid_of(run: Run, seen: list[Attention]) -> tuple[Grid, int]:
    """The patches' grid and the number of tokens before them, once all attentions were among the same tokens."""
    count = len(run.images)
    sizes = sorted({(each.weights.shape[-2], each.weights.shape[-1]) for each in seen})
    # Windows stand where pictures should; heads may stand among the pictures: [N heads, T, T].
    rows = {each.weights.shape[0] if each.weights.ndim == 4 else each.weights.shape[0] % count for each in seen}
    if len(sizes) == 1 and sizes[0][0] == sizes[0][1] and rows <= {0, count}:
        found = token_grid(run.model, run.images, sizes[0][0])
        if found is not None:
            return found
    shown = ", ".join(f"{rows} by {columns}" for rows, columns in sizes) or "none seen"
    raise UnsupportedModel(
        f"This {type(run.model).__name__} does not attend among all its patches in every block (attention weights: "
        f"{shown}), and weights of unlike sizes cannot be multiplied from block to block. {_INSTEAD}"
    )


_INSTEAD = (
    "Use a class-activation map such as grad_cam, an input-gradient method such as integrated_gradients, or rise."
)


def why_not(model: nn.Module) -> str | None:
    """Why attention cannot be followed from block to block in this model, as far as its modules tell; else None."""
    model = unwrap(model)
    name = type(model).__name__
    if kind := frozen_graph(model):
        return f"The model is {kind}: its attention cannot be seen. Give the original nn.Module, or use saliency."
    modules = list(model.modules())
    for each in modules:
        if "window" in type(each).__name__.lower():
            return (
                f"{name} attends inside windows ({type(each).__name__}), not among all tokens, so attention cannot be "
                f"followed from block to block. {_INSTEAD}"
            )
    if any(speaks_of_attention(path, type(each).__name__) for path, each in model.named_modules()):
        return None
    convolutions = [each for each in modules if isinstance(each, nn.modules.conv._ConvNd)]
    normed = any(isinstance(each, (nn.LayerNorm, nn.RMSNorm)) for each in modules)
    if not normed or len(convolutions) > _STEM or any(each.groups > 1 for each in convolutions):
        return f"{name} has no attention among tokens, which this method follows. {_INSTEAD}"
    return None


def refuse_without_attention(model: nn.Module) -> None:
    """Refuse what `why_not` has a reason against.

    Errors   UnsupportedModel
    """
    reason = why_not(model)
    if reason is not None:
        raise UnsupportedModel(reason)


@contextmanager
def watched(network: nn.Module, *, leaves: bool = True) -> Iterator[list[Attention]]:
    """Collect the attention of this thread's forward pass, call by call.

    With `leaves` the first weights become the leaf from which the graph is built; all later ones are points of it.
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
        return lambda k, given: running.append(name)

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
    """Runs the calling thread's attention functions in plain steps and shows `keep` their weights."""

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
