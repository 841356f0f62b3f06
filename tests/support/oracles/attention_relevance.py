"""AttnLRP and CP-LRP of a two-block vision transformer, computed from its parameters, step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import _norm, _softmax, cut_into_patches, heads_of, two_blocks, wide_images
from .oracle import Oracle


def _over(r: Tensor, z: Tensor, epsilon: float) -> Tensor:
    return r / (z + epsilon * torch.where(z < 0, -1.0, 1.0).to(z))


class _ByHand:
    """The relevance of each step; `attn` is AttnLRP, else attention weights are constants."""

    def __init__(self, attn: bool, epsilon: float) -> None:
        self.attn, self.epsilon = attn, epsilon

    def linear(self, x: Tensor, weight: Tensor, z: Tensor, r: Tensor) -> Tensor:
        return x * (_over(r, z, self.epsilon) @ weight)

    def norm(self, layer: nn.LayerNorm, x: Tensor, r: Tensor) -> Tensor:
        sigma = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()
        s = _over(r, _norm(layer, x), self.epsilon) * layer.weight / sigma
        return x * (s - s.mean(-1, keepdim=True))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One head, [N, T, d]: the relevance of queries, keys and values."""
        x = q @ k.mT / q.shape[-1] ** 0.5
        a = _softmax(x)
        y = a @ v
        if not self.attn:
            return torch.zeros_like(q), torch.zeros_like(k), v * (a.mT @ (r / y))
        s = _over(r, 2 * y, self.epsilon)
        r_v, r_a = v * (a.mT @ s), a * (s @ v.mT)
        r_x = x * (r_a - a * r_a.sum(-1, keepdim=True))
        s = _over(r_x, 2 * (q @ k.mT), self.epsilon)
        return q * (s @ k), k * (s.mT @ q), r_v


def attention_relevance(net: nn.Module, x: Tensor, classes: list[int], attn: bool, epsilon: float) -> Tensor:
    """Relevance of the images for the network of `two_blocks`; the epsilon rule."""
    hand = _ByHand(attn, epsilon)
    with torch.no_grad():
        n, patch = len(x), net.conv_proj.kernel_size[0]
        rows, columns = x.shape[2] // patch, x.shape[3] // patch
        cut = cut_into_patches(x, patch)
        embedding = net.conv_proj.weight.flatten(1)
        patches = cut @ embedding.T + net.conv_proj.bias
        joined = torch.cat([net.class_token.expand(n, -1, -1), patches], 1)
        tokens = joined + net.positions
        steps = []
        for block in net.blocks:
            attention = block.attention
            y = _norm(block.ln_1, tokens)
            qkv = y @ attention.in_proj_weight.T + attention.in_proj_bias
            q, k, v = (torch.stack(part) for part in heads_of(block, tokens))
            mixed = torch.cat(list(_softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v), -1)
            branch = mixed @ attention.out_proj.weight.T + attention.out_proj.bias
            middle = tokens + branch
            normed = _norm(block.ln_2, middle)
            hidden = normed @ block.mlp[0].weight.T + block.mlp[0].bias
            mlp = F.gelu(hidden) @ block.mlp[2].weight.T + block.mlp[2].bias
            steps.append((tokens, y, qkv, q, k, v, mixed, branch, middle, normed, hidden, mlp))
            tokens = middle + mlp
        last = _norm(net.ln, tokens)
        scores = last[:, 0] @ net.head.weight.T + net.head.bias

        r = torch.zeros_like(scores)
        r[range(n), classes] = scores[range(n), classes]
        r_last = torch.zeros_like(last)
        r_last[:, 0] = hand.linear(last[:, 0], net.head.weight, scores, r)
        r = hand.norm(net.ln, tokens, r_last)
        for block, step in zip(reversed(net.blocks), reversed(steps), strict=True):
            before, y, qkv, q, k, v, mixed, branch, middle, normed, hidden, mlp = step
            r_mlp, r_middle = r * mlp / (middle + mlp), r * middle / (middle + mlp)
            r_hidden = hand.linear(F.gelu(hidden), block.mlp[2].weight, mlp, r_mlp)
            r_normed = hand.linear(normed, block.mlp[0].weight, hidden, r_hidden)
            r = r_middle + hand.norm(block.ln_2, middle, r_normed)
            r_branch, r_before = r * branch / middle, r * before / middle
            r_mixed = hand.linear(mixed, block.attention.out_proj.weight, branch, r_branch)
            parts = [hand.attend(*each) for each in zip(q, k, v, r_mixed.chunk(len(q), -1), strict=True)]
            r_qkv = torch.cat([torch.cat(list(part), -1) for part in zip(*parts, strict=True)], -1)
            r_y = hand.linear(y, block.attention.in_proj_weight, qkv, r_qkv)
            r = r_before + hand.norm(block.ln_1, before, r_y)
        r = r * joined / (joined + net.positions)
        r = hand.linear(cut, embedding, patches, r[:, 1:])
        r = r.view(n, rows, columns, x.shape[1], patch, patch).permute(0, 3, 1, 4, 2, 5)
        return r.reshape(x.shape)


ORACLES: dict[str, Oracle] = {
    name: Oracle(
        "propositions of the paper for two blocks, step by step, without autograd",
        two_blocks,
        lambda net, x, c, attn=attn: attention_relevance(net, x, c, attn, 0.0),  # type: ignore[misc]
        images=wide_images,
        classes=[2, 0, 4],
    )
    for name, attn in (("attn_lrp", True), ("cp_lrp", False))
}
