"""Attention methods on backbones without scores, and on networks whose last attention pools the tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from explainers import METHODS, UnsupportedModel, attention_heads, attention_rollout, explain, le_grad
from tests.support.nets import random_images, settle
from tests.support.token_nets import PlainViT, plain_vit

IMAGES = random_images(2, 3, 32, 64)
CLASSES = [2, 0]


class Pooled(PlainViT):
    """Learned queries read the tokens, as in SigLIP and AIMv2; the head reads the first query, or all of them."""

    def __init__(self, queries: int = 1, reads_all: bool = False, uses_pool: bool = True, extra: int = 0) -> None:
        super().__init__(extra, "patches")
        self.query = nn.Parameter(torch.randn(1, queries, 8))
        self.pool = nn.MultiheadAttention(8, 2, batch_first=True)
        self.reads_all, self.uses_pool = reads_all, uses_pool

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        if self.tokens is not None:
            tokens = torch.cat([self.tokens.expand(len(x), -1, -1), tokens], 1)
        tokens = self.blocks(tokens)
        pooled = self.pool(self.query.expand(len(x), -1, -1), tokens, tokens)[0]
        if not self.uses_pool:
            return self.head(tokens.mean(1))
        return self.head(pooled.mean(1) if self.reads_all else pooled[:, 0])


def pooled(**form: Any) -> Pooled:
    torch.manual_seed(1)
    return settle(Pooled(**form).double())


def attend(q: Tensor, k: Tensor, v: Tensor, weights: list[Tensor]) -> Tensor:
    """Two heads of four channels, with the weights as leaves of the graph."""
    q, k, v = (each.unflatten(2, (2, 4)).transpose(1, 2) for each in (q, k, v))
    a = (q @ k.mT / 2).softmax(-1)
    a = a if weights and a.requires_grad else a.detach().requires_grad_()
    weights.append(a)
    return (a @ v).transpose(1, 2).flatten(2)


def by_hand(net: Pooled, x: Tensor, classes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of both blocks and of the pooling, and the slopes of the score at them."""
    weights: list[Tensor] = []
    tokens = net.patch(x).flatten(2).mT
    if net.tokens is not None:
        tokens = torch.cat([net.tokens.expand(len(x), -1, -1), tokens], 1)
    for block in net.blocks:
        q, k, v = block.attn.qkv(block.norm1(tokens)).chunk(3, -1)
        tokens = tokens + block.attn.proj(attend(q, k, v, weights))
        tokens = tokens + block.mlp(block.norm2(tokens))
    w, b = net.pool.in_proj_weight.chunk(3), net.pool.in_proj_bias.chunk(3)
    q, k, v = (F.linear(each, w[i], b[i]) for i, each in enumerate((net.query.expand(len(x), -1, -1), tokens, tokens)))
    found = net.pool.out_proj(attend(q, k, v, weights))
    scores = net.head(found.mean(1) if net.reads_all else found[:, 0])
    torch.testing.assert_close(scores, net(x))
    slopes = torch.autograd.grad(scores[range(len(x)), classes].sum(), weights)
    return [each.detach() for each in weights], list(slopes)


def grid(tokens: Tensor, extra: int = 0) -> Tensor:
    return tokens[:, extra:].unflatten(1, (2, 4))


FORMS = [{}, {"queries": 3}, {"queries": 3, "reads_all": True}, {"extra": 2}]


@pytest.mark.parametrize("form", FORMS, ids=["one query", "first of three", "three queries", "with extra tokens"])
def test_maps_of_a_pooling_by_hand(form: dict[str, Any]) -> None:
    """Oracle: softmaxes by hand, autograd's slopes, and the papers' products with the pooling's rows at the left."""
    net = pooled(**form)
    (a1, a2, p), (g1, g2, gp) = by_hand(net, IMAGES, CLASSES)
    read = slice(None) if net.reads_all else slice(0, 1)
    extra = net.extra

    eye = torch.eye(a1.shape[-1], dtype=a1.dtype)
    rollout = p.mean(1)[:, read].mean(1, keepdim=True) @ ((a2.mean(1) + eye) / 2) @ ((a1.mean(1) + eye) / 2)
    torch.testing.assert_close(attention_rollout(net, IMAGES, CLASSES), grid(rollout[:, 0], extra))

    first, second, last = ((g * a).relu().mean(1) for a, g in ((a1, g1), (a2, g2), (p, gp)))
    relevance = last[:, read].mean(1, keepdim=True) @ (eye + second) @ (eye + first)
    torch.testing.assert_close(explainers.transformer_attribution(net, IMAGES, CLASSES), grid(relevance[:, 0], extra))

    means = torch.stack([g.relu().mean((1, 2)) for g in (g1, g2, gp)]).mean(0)
    torch.testing.assert_close(le_grad(net, IMAGES, CLASSES), grid(means, extra))
    torch.testing.assert_close(attention_heads(net, IMAGES), p.mean(2)[..., extra:].unflatten(2, (2, 4)))


def test_the_score_of_mean_tokens_needs_a_pooling_for_any_number_of_rows() -> None:
    """`len(x)` queries do not fit the rows of all blocks; `len(tokens)` queries do, and their slopes are not used."""

    class AnyRows(Pooled):
        def forward(self, x: Tensor) -> Tensor:
            tokens = self.blocks(self.patch(x).flatten(2).mT)
            return self.head(self.pool(self.query.expand(len(tokens), -1, -1), tokens, tokens)[0][:, 0])

    net = pooled()
    with pytest.raises(UnsupportedModel, match="Use score='logit'"):
        le_grad(net, IMAGES, CLASSES, score="mean_token")
    other = settle(AnyRows().double())
    other.load_state_dict(net.state_dict())
    assert le_grad(other, IMAGES, CLASSES, score="mean_token").any()


def test_a_pooling_that_the_score_does_not_use_is_left_out() -> None:
    """As in SiglipForImageClassification, which averages the tokens."""
    net, plain = pooled(uses_pool=False), plain_vit(0, "patches")
    plain.load_state_dict(net.state_dict(), strict=False)
    plain.norm = nn.Identity()

    for name in ("attention_rollout", "transformer_attribution", "le_grad"):
        torch.testing.assert_close(METHODS[name](net, IMAGES, CLASSES), METHODS[name](plain, IMAGES, CLASSES))


class Headless(PlainViT):
    """Returns all tokens, as a backbone does."""

    def forward(self, x: Tensor) -> Any:
        tokens = self.patch(x).flatten(2).mT
        if self.tokens is not None:
            tokens = torch.cat([self.tokens.expand(len(x), -1, -1), tokens], 1)
        return {"last_hidden_state": self.norm(self.blocks(tokens))}


def headless(extra: int, reads: str) -> tuple[nn.Module, nn.Module]:
    """A backbone, and the same network with a head that reads these tokens."""
    net, with_head = settle(Headless(extra).double()), settle(PlainViT(extra, reads).double())
    with_head.load_state_dict(net.state_dict())
    return net, with_head


@pytest.mark.parametrize(("extra", "tokens"), [(1, "the class token"), (3, "the class token"), (0, "all patches")])
def test_rollout_of_a_backbone_without_scores_reads_the_class_token(extra: int, tokens: str) -> None:
    net, with_head = headless(extra, "first" if extra else "patches")
    found = explain("attention_rollout", net, IMAGES)
    torch.testing.assert_close(found.map, attention_rollout(with_head, IMAGES, 0))
    (finding,) = (each for each in found.findings[0] if each.code == "no_scores")
    assert tokens in finding.sentence


def test_a_target_function_of_a_backbone_chooses_the_tokens() -> None:
    net, with_head = headless(1, "patches")
    found = attention_rollout(net, IMAGES, lambda output: output["last_hidden_state"][:, 1:, 0].sum(1))
    torch.testing.assert_close(found, attention_rollout(with_head, IMAGES, 0))
