"""Oracles of the attention methods: a class-token network of two blocks, computed from its parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.nets import ClassToken, random_images, settle

from .oracle import Expected, Oracle, each_image


def two_blocks(grid: tuple[int, int] = (2, 8)) -> nn.Module:
    """Two pre-norm blocks, two heads, a class token, 2 x 8 patches (as many as 4 x 4)."""
    return settle(ClassToken(grid).double())


def wide_images() -> Tensor:
    return random_images(3, 3, 32, 128)


def cut_into_patches(x: Tensor, patch: int) -> Tensor:
    """[N, rows * columns, channels * patch * patch]."""
    cut = x.unfold(2, patch, patch).unfold(3, patch, patch)  # n, channel, row, column, patch, patch
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def attend_by_hand(net: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Attention weights [N, heads, T, T] and tokens after each block, and the scores: matrix products and softmaxes."""
    n, cut = len(x), cut_into_patches(x, net.conv_proj.kernel_size[0])
    tokens = cut @ net.conv_proj.weight.flatten(1).T + net.conv_proj.bias
    tokens = torch.cat([net.class_token.expand(n, -1, -1), tokens], 1) + net.positions
    weights, after = [], []
    for block in net.blocks:
        a, mixed = _attend(block, tokens)
        weights.append(a)
        tokens = _after_attention(block, tokens, mixed)
        after.append(tokens)
    return weights, after, _scores(net, tokens)


def heads_of(block: nn.Module, tokens: Tensor) -> list[list[Tensor]]:
    """Queries, keys and values, head by head."""
    y = _norm(block.ln_1, tokens)
    qkv = y @ block.attention.in_proj_weight.T + block.attention.in_proj_bias
    return [list(part.chunk(block.attention.num_heads, -1)) for part in qkv.chunk(3, -1)]


def _attend(block: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, as leaves of the graph where nothing before them is one, and the mixed values of all heads."""
    heads = list(zip(*heads_of(block, tokens), strict=True))
    a = torch.stack([_softmax(q @ k.mT / q.shape[-1] ** 0.5) for q, k, _ in heads], 1)
    a = a if a.requires_grad else a.detach().requires_grad_()
    return a, torch.cat([a[:, i] @ v for i, (_, _, v) in enumerate(heads)], -1)


def _after_attention(block: nn.Module, tokens: Tensor, mixed: Tensor) -> Tensor:
    tokens = tokens + mixed @ block.attention.out_proj.weight.T + block.attention.out_proj.bias
    inner = F.gelu(_norm(block.ln_2, tokens) @ block.mlp[0].weight.T + block.mlp[0].bias)
    return tokens + inner @ block.mlp[2].weight.T + block.mlp[2].bias


def _scores(net: nn.Module, tokens: Tensor) -> Tensor:
    return _norm(net.ln, tokens)[:, 0] @ net.head.weight.T + net.head.bias


def _norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def _softmax(x: Tensor) -> Tensor:
    e = (x - x.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def slopes_by_hand(net: nn.Module, x: Tensor, classes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Attention weights A and d score / dA of both blocks."""
    weights, _, scores = attend_by_hand(net, x)
    gradients = torch.autograd.grad(scores[range(len(x)), classes].sum(), weights)
    return [each.detach() for each in weights], list(gradients)


def class_row(net: nn.Module, tokens: Tensor) -> Tensor:
    """[N, T] without the class token, on 2 x 8 patches."""
    return tokens[:, 1:].reshape(len(tokens), 2, 8)


def _rollout(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Image by image: 0.5 A + 0.5 I (residual)."""
    first, second = (each.detach() for each in attend_by_hand(net, x)[0])
    rows = []
    for a, b in zip(first, second, strict=True):
        eye = torch.eye(a.shape[-1], dtype=a.dtype)
        rows.append(((0.5 * (b[0] + b[1]) / 2 + 0.5 * eye) @ (0.5 * (a[0] + a[1]) / 2 + 0.5 * eye))[0])
    return class_row(net, torch.stack(rows))


@each_image
def _fused_rollout(net: nn.Module, image: Tensor, c: int, fusion: str, ratio: float) -> Tensor:
    """The smallest weights of a block are discarded, rows renormalized."""
    eye = rolled = torch.eye(17, dtype=image.dtype)
    for (a,) in attend_by_hand(net, image[None])[0]:
        fused = a.detach().max(0).values if fusion == "max" else a.detach().min(0).values
        limit = sorted(fused.flatten().tolist())[int(ratio * 288)]
        mixed = torch.where(fused >= limit, fused, 0) + eye
        rolled = (mixed / mixed.sum(1, keepdim=True)) @ rolled
    return class_row(net, rolled[:1])[0]


def _chefer(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Equations 5 and 6, one image at a time: R = (I + second) (I + first), and the class token's row of it."""
    (a1, a2), (g1, g2) = slopes_by_hand(net, x, classes)
    rows = []
    for n in range(len(x)):
        first, second = (sum((g[n, h] * a[n, h]).clamp(min=0) for h in (0, 1)) / 2 for a, g in ((a1, g1), (a2, g2)))
        rows.append((torch.eye(17, dtype=x.dtype) + first + second + second @ first)[0])
    return class_row(net, torch.stack(rows))


def _legrad(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Means of positive gradients over heads and tokens, then over blocks."""
    means = [slopes.clamp(min=0).mean((1, 2)) for slopes in slopes_by_hand(net, x, classes)[1]]
    return class_row(net, sum(means) / len(means))


def _grad_eclip(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """The authors' form, one image at a time: gradient at the class token's output, times value, times similarity."""
    block, rows = net.blocks[1], []
    _, after, _ = attend_by_hand(net, x)
    tokens = after[0].detach()
    q, k, v = (torch.cat(part, -1) for part in heads_of(block, tokens))
    mixed = _attend(block, tokens)[1].detach().requires_grad_()
    scores = _scores(net, _after_attention(block, tokens, mixed))
    (g,) = torch.autograd.grad(scores[range(len(x)), classes].sum(), mixed)
    for n in range(len(x)):
        cosine = torch.stack([q[n, 0] @ key / (q[n, 0].norm() * key.norm()) for key in k[n]])[1:]
        loose = (cosine - cosine.min()) / (cosine.max() - cosine.min())
        rows.append((loose * torch.stack([(g[n, 0] * value).sum() for value in v[n, 1:]])).clamp(min=0))
    return torch.stack(rows).detach().reshape(len(x), 2, 8)


def _of_two_blocks(truth: str, expected: Expected, **options: Any) -> Oracle:
    return Oracle(truth, two_blocks, expected, wide_images, [2, 0, 4], options=options)


ORACLES: dict[str, Oracle] = {
    "attention_rollout": _of_two_blocks("two blocks written out, (A2 + I)(A1 + I) / 4", _rollout),
    "transformer_attribution": _of_two_blocks("two blocks written out, (I + second)(I + first)", _chefer),
    "grad_eclip": _of_two_blocks("gradient at the class token's output times value, patch by patch", _grad_eclip),
    "le_grad": _of_two_blocks("two blocks written out, slope by slope", _legrad),
}

VARIANTS: dict[str, Oracle] = {
    f"attention_rollout with {fusion} and {ratio}": _of_two_blocks(
        "image by image", partial(_fused_rollout, fusion=fusion, ratio=ratio), head_fusion=fusion, discard_ratio=ratio
    )
    for fusion, ratio in (("max", 0.0), ("max", 0.5), ("min", 0.5))
}
