"""AttnLRP and CP-LRP of a two-block vision transformer: input x gradient of the network with constants detached."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import _softmax, cut_into_patches, two_blocks, wide_images
from .oracle import Oracle


def _norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    """Proposition 3.4: the deviation is a constant."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt().detach() * layer.weight + layer.bias


def attention_relevance(net: nn.Module, x: Tensor, classes: list[int], attn: bool) -> Tensor:
    """Relevance of the images for the network of `two_blocks`: AttnLRP with `attn`, else attention is a constant."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        """Proposition 3.3: half for each factor."""
        return (a @ b.detach() + a.detach() @ b) / 2 if attn else a.detach() @ b

    x = x.detach().clone().requires_grad_()
    patches = cut_into_patches(x, net.conv_proj.kernel_size[0]) @ net.conv_proj.weight.flatten(1).T
    tokens = torch.cat([net.class_token.expand(len(x), -1, -1), patches + net.conv_proj.bias], 1) + net.positions
    for block in net.blocks:
        attention = block.attention
        qkv = _norm(block.ln_1, tokens) @ attention.in_proj_weight.T + attention.in_proj_bias
        heads = zip(*(part.chunk(attention.num_heads, -1) for part in qkv.chunk(3, -1)), strict=True)
        mixed = [product(_softmax(product(q, k.mT) / q.shape[-1] ** 0.5), v) for q, k, v in heads]
        tokens = tokens + torch.cat(mixed, -1) @ attention.out_proj.weight.T + attention.out_proj.bias
        hidden = _norm(block.ln_2, tokens) @ block.mlp[0].weight.T + block.mlp[0].bias
        tokens = tokens + hidden * (F.gelu(hidden) / hidden).detach() @ block.mlp[2].weight.T + block.mlp[2].bias
    scores = _norm(net.ln, tokens)[:, 0] @ net.head.weight.T + net.head.bias
    (slopes,) = torch.autograd.grad(scores[range(len(x)), classes].sum(), x)
    return (x * slopes).detach()


ORACLES: dict[str, Oracle] = {
    name: Oracle(
        "input x gradient with the constants of the propositions detached",
        two_blocks,
        partial(attention_relevance, attn=attn),
        images=wide_images,
        classes=[2, 0, 4],
    )
    for name, attn in (("attn_lrp", True), ("cp_lrp", False))
}
