"""Attention methods either follow every attention layer of a network, or raise an error that names the reason.

Each network here differs in a single block from one whose map is known, so a map that ignores that block is not caused
by the architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import UnsupportedModel, attention_heads, attention_rollout, le_grad, transformer_attribution
from tests.support.nets import settle
from tests.support.oracles.attention import wide_images
from tests.support.token_nets import Attention, PlainViT, plain_vit

METHODS_OF_ATTENTION = [attention_rollout, transformer_attribution, le_grad, attention_heads]
FOLLOWING = METHODS_OF_ATTENTION[:3]


class Spelled(Attention):
    """The attention of `token_nets` with `weigh` for the softmax and its product with the values."""

    weigh: Callable[[Tensor, Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        n, count, width = x.shape
        q, k, v = self.qkv(x).reshape(n, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = self.weigh(q * q.shape[-1] ** -0.5 @ k.mT, v)
        return self.proj(mixed.transpose(1, 2).reshape(n, count, width))


def respelled(weigh: Callable[[Tensor, Tensor], Tensor], blocks: tuple[int, ...] = (0, 1), **form: object) -> nn.Module:
    """`plain_vit` with the same weights, in which some blocks compute their attention with `weigh`."""
    net = plain_vit(1, fused=False, **form)
    for i in blocks:
        old = net.blocks[i].attn
        net.blocks[i].attn = type("Spelled", (Spelled,), {"weigh": staticmethod(weigh)})(8, 2, False).double().eval()
        net.blocks[i].attn.load_state_dict(old.state_dict())
    return net


def one_by_one(scores: Tensor, v: Tensor) -> Tensor:
    """Three dimensions, [N heads, T, T]."""
    return torch.bmm(scores.flatten(0, 1).softmax(2), v.flatten(0, 1)).unflatten(0, scores.shape[:2])


SPELLINGS = {
    "torch.softmax": lambda s, v: torch.softmax(s, -1) @ v,
    "F.softmax": lambda s, v: F.softmax(s, dim=3, dtype=torch.float64) @ v,
    "dropout and dtype": lambda s, v: F.dropout(s.softmax(-1), 0.1, training=False).to(v.dtype) @ v,
    "einsum": lambda s, v: torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v),
    "transposed": lambda s, v: (v.mT @ s.softmax(-1).transpose(-2, -1)).mT,
    "product and sum": lambda s, v: (s.softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(3),
    "three dimensions": one_by_one,
}


def test_every_implementation_gives_the_same_map():
    x = wide_images()[:2]
    for method in (attention_rollout, le_grad):
        expected = method(plain_vit(1, fused=False), x, 1)
        for spelling, weigh in SPELLINGS.items():
            torch.testing.assert_close(method(respelled(weigh), x, 1), expected, rtol=1e-9, atol=1e-12, msg=spelling)


def by_hand(scores: Tensor, v: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def linear(scores: Tensor, v: Tensor) -> Tensor:
    return v.softmax(-2) * scores.mean()


def talking(scores: Tensor, v: Tensor) -> Tensor:
    """Heads are mixed after the softmax."""
    mix = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=scores.dtype)
    return F.linear(scores.softmax(-1).permute(0, 2, 3, 1), mix).permute(0, 3, 1, 2) @ v


def scaled(scores: Tensor, v: Tensor) -> Tensor:
    return scores.softmax(-1) * 0.5 @ v


def reduced(scores: Tensor, v: Tensor) -> Tensor:
    """Queries attend only to every second key."""
    return scores[..., ::2].softmax(-1) @ v[..., ::2, :]


def in_windows(scores: Tensor, v: Tensor) -> Tensor:
    """Tokens 1 to 16 in two windows; the first token attends to itself."""
    rows = [v[:, :, :1]]
    for start in (1, 9):
        part = slice(start, start + 8)
        rows.append(scores[:, :, part, part].softmax(-1) @ v[:, :, part])
    return torch.cat(rows, 2)


def among_channels(scores: Tensor, v: Tensor) -> Tensor:
    """Weights [N, heads, d, d]."""
    return ((v.mT @ v).softmax(-1) @ v.mT).mT + scores.mean()


def head_by_head(scores: Tensor, v: Tensor) -> Tensor:
    return torch.stack([scores[:, h].softmax(-1) @ v[:, h] for h in range(v.shape[1])], 1)


def of_queries(scores: Tensor, v: Tensor) -> Tensor:
    """Normalized over the queries: columns sum to 1, rows do not."""
    return scores.mT.softmax(-1).mT @ v


REFUSED = {
    "by hand": (by_hand, "'blocks.0.attn' .* does not call a softmax"),
    "linear": (linear, "'blocks.0.attn' .* does not call a softmax"),
    "talking heads": (talking, "'blocks.0.attn' modifies its weights after the softmax .linear."),
    "scaled": (scaled, "'blocks.0.attn' modifies its weights after the softmax .mul."),
    "reduced keys": (reduced, "'blocks.0.attn' has 17 queries and 9 keys"),
    "windows": (in_windows, "'blocks.0.attn' has 8 by 8 weights that are not between all tokens"),
    "channels": (among_channels, "'blocks.0.attn' has 4 by 4 weights that are not between all tokens"),
    "head by head": (head_by_head, "'blocks.0.attn' and 'blocks.0.attn' in parallel"),
    "of queries": (of_queries, "'blocks.0.attn' modifies its weights after the softmax"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_one_block_that_cannot_be_followed_refuses_the_network(kind):
    """The other block is unchanged, and would give a map by itself."""
    weigh, words = REFUSED[kind]
    for method, count in product(FOLLOWING, (1, 2)):
        with pytest.raises(UnsupportedModel, match=words):
            method(respelled(weigh, (0,)), wide_images()[:count], 1)


def test_a_block_that_is_not_called_attention():
    """It has the class of a module in which attention was detected."""

    class Mixer(Spelled):
        weigh = staticmethod(lambda scores, v: scores.softmax(-1) @ v)

    net = PlainViT(1)
    net.blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(8), Mixer(8, 2, False)) for _ in "ab"))
    net = settle(net.double())
    assert attention_rollout(net, wide_images(), 1).any()
    net.blocks[0][1].weigh = by_hand
    for method in FOLLOWING:
        with pytest.raises(UnsupportedModel, match=r"'blocks.0.1' .*softmax"):
            method(net, wide_images(), 1)


def test_a_softmax_outside_attention_is_ignored():
    """A gate over the channels, and probabilities of each token."""

    class Gated(PlainViT):
        share = staticmethod(torch.softmax)

        def forward(self, x: Tensor) -> Tensor:
            tokens = torch.cat([self.tokens.expand(len(x), -1, -1), self.patch(x).flatten(2).mT], 1)
            return self.share(self.head(self.norm(self.blocks(tokens * self.share(tokens, -1)))), -1)[:, 0]

    class Plain(Gated):
        share = staticmethod(lambda x, dim: (x - x.logsumexp(dim, keepdim=True)).exp())

    gated, plain = (settle(kind(1, fused=False).double()) for kind in (Gated, Plain))
    for method in METHODS_OF_ATTENTION:
        torch.testing.assert_close(method(gated, wide_images(), 1), method(plain, wide_images(), 1))
