"""Attention methods: recorded weights for every implementation of attention, aggregation rules, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS, UnsupportedModel, attention_heads, attention_rollout, explain, le_grad, token_pca
from explainers.call.attention.record import record_attention
from tests.support.nets import Written, random_images, residual, settle
from tests.support.oracles.attention import attend_by_hand, class_row, two_blocks, wide_images
from tests.support.token_nets import PlainViT, conv_next, max_vit, plain_vit, swin_v1, swin_v2, vit

ATTENTION = ["attention_rollout", "transformer_attribution", "le_grad", "attention_heads"]
CLASSES = [2, 0, 4]


# The weights


@pytest.mark.parametrize("norm_first", [True, False])
def test_pytorchs_encoder_is_recorded_without_its_fast_path(norm_first):
    """In eval mode `nn.TransformerEncoder` runs one fused kernel, whose attention weights cannot be recorded."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    parts = {"patch": nn.Conv2d(3, 8, 16, 16), "head": nn.Linear(8, 5)}
    net = Written(
        lambda net, x: net.head(net.encoder(net.patch(x).flatten(2).mT).mean(1)),
        encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), **parts,
    )  # fmt: skip
    net, x = settle(net.double()).requires_grad_(False), random_images(2, 3, 32, 128)
    for name in ATTENTION:
        found = METHODS[name](net, x, 1)
        assert found.shape[-2:] == (2, 8) and found.flatten(1).std(1).min() > 0
    torch.testing.assert_close(explain("le_grad", net, x, 1).scores, net(x), rtol=1e-10, atol=1e-12)


# The rules


READ = [(1, "first", [0]), (5, "first", [0]), (2, "two", [0, 1]), (4, "patches", range(4, 20))]


@pytest.mark.parametrize(("extra", "reads", "rows"), READ)
def test_readout_rows_are_the_tokens_the_head_reads(extra, reads, rows):
    """By hand: the tokens that the head reads, with any number of extra tokens before the patches."""
    net, x = plain_vit(extra, reads), wide_images()
    seen = record_attention(net, x, CLASSES, gradients=True)
    relevance = torch.eye(16 + extra, dtype=x.dtype).expand(3, -1, -1)
    for a, g in zip(seen.weights, seen.gradients, strict=True):
        relevance = relevance + (a * g).clamp(min=0).mean(1) @ relevance
    by_hand = relevance[:, list(rows)].mean(1)[:, extra:].reshape(3, 2, 8)
    torch.testing.assert_close(explainers.transformer_attribution(net, x, CLASSES), by_hand, rtol=1e-10, atol=1e-14)


def test_p87_le_grad_of_mean_tokens_agrees_with_torchcam():
    """Oracle: torchcam's unnormalized LeGrad on a square grid; LeGrad of the logit is another map."""
    peer = pytest.importorskip("torchcam.methods").LeGrad
    net, x = vit(), random_images(3, 3, 64, 64)
    with peer(net, list(net.encoder.layers)) as extractor:
        expected = extractor(CLASSES, net(x.clone().requires_grad_()), normalized=False)[0]

    torch.testing.assert_close(le_grad(net, x, CLASSES, score="mean_token"), expected, rtol=1e-10, atol=1e-14)
    assert not torch.allclose(le_grad(net, x, CLASSES), expected, rtol=0.1)


def test_le_grad_of_mean_tokens_needs_blocks():
    """Attention modules that share one parent have no block output between them."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        for attention in (self.first, self.second):
            tokens = tokens + attention(tokens, tokens, tokens)[0]
        return self.head(tokens.mean(1))

    attentions = {name: nn.MultiheadAttention(8, 2, batch_first=True) for name in ("first", "second")}
    net = Written(forward, patch=nn.Conv2d(3, 8, 16, 16), **attentions, head=nn.Linear(8, 5))
    net = settle(net.double())

    assert le_grad(net, wide_images(), 1).any()
    with pytest.raises(UnsupportedModel, match="'first', 'second'.*score='logit'"):
        le_grad(net, wide_images(), 1, score="mean_token")


# Heads and principal components


def test_heads_of_one_block_all_blocks_and_the_next_attention():
    net, x = two_blocks(), wide_images()
    first, second = (
        each.detach()[:, :, 0, 1:].unflatten(2, (2, 8)) for each in attend_by_hand(net, x)[0]
    )  # the class token's row of each head

    for layer, expected in {
        None: second, "blocks.1.attention": second, "blocks.0": first, "blocks": torch.cat([first, second], 1),
        "conv_proj": first, "blocks.0.mlp": second, "blocks.1.ln_1": second,
    }.items():  # fmt: skip
        torch.testing.assert_close(attention_heads(net, x, layer=layer), expected, rtol=1e-10, atol=1e-14)
    with pytest.raises(ValueError, match=r"Layer 'blocks.1.ln_2' has no attention.*'blocks.0.attention'"):
        attention_heads(net, x, layer="blocks.1.ln_2")
    with pytest.raises(ValueError, match="no layer 'blocks.7'"):
        attention_heads(net, x, layer="blocks.7")


def test_mean_query_and_networks_without_a_class_token():
    net, x = plain_vit(4, "patches"), wide_images()
    (weights,) = record_attention(net, x, 1, gradients=False).weights[1:]

    patches = weights[:, :, 4:, 4:].mean(2).unflatten(2, (2, 8))
    torch.testing.assert_close(attention_heads(net, x, query="mean"), patches)
    torch.testing.assert_close(attention_heads(net, x), weights[:, :, 0, 4:].unflatten(2, (2, 8)))
    bare = plain_vit(0, "patches")
    assert torch.equal(attention_heads(bare, x), attention_heads(bare, x, query="mean"))


def test_token_pca_components_beyond_the_rank_are_zero():
    """Six channels have six components, a constant image none."""
    net, x = residual(), random_images(1)
    assert token_pca(net, x, layer="layer2", components=9)[:, 6:].eq(0).all()
    flat = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert token_pca(flat.double(), torch.full_like(x, 0.3), layer="0").eq(0).all()


# Refusals, contracts


def hidden(form: str) -> nn.Module:
    if form == "traced":
        return torch.jit.trace(two_blocks(), wide_images(), check_trace=False)
    return torch.export.export(two_blocks(), (wide_images(),)).module()


@pytest.mark.filterwarnings("ignore")
def test_networks_without_attention_among_all_tokens_are_refused():
    for net, size, word in (
        (residual(), (12, 16), "no attention between tokens"),
        (conv_next(), (64, 96), "no attention between tokens"),
        (swin_v1(), (64, 96), "ShiftedWindowAttention"),
        (swin_v2(), (64, 96), "ShiftedWindowAttentionV2"),
        (max_vit(), (64, 64), "windowed attention"),
        (hidden("traced"), (32, 128), "traced"),
        (hidden("exported"), (32, 128), "exported"),
    ):
        for name in ATTENTION:
            assert word in METHODS[name].applies(net)
            with pytest.raises(UnsupportedModel, match=word):
                METHODS[name](net, random_images(3, 3, *size))


def test_windowed_attention_is_refused_in_the_forward_pass():
    """Two windows of 2 x 4 in a grid of 2 x 8: the windows are folded into the batch axis."""

    class Halves(PlainViT):
        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patch(x).unflatten(3, (2, 4)).permute(0, 3, 2, 4, 1).flatten(2, 3).flatten(0, 1)
            return self.head(self.blocks(tokens).unflatten(0, (len(x), 2)).mean((1, 2)))

    with pytest.raises(UnsupportedModel, match="within groups of 8 tokens"):
        attention_rollout(settle(Halves(0, "patches").double()), wide_images())


def test_le_grad_of_a_unit_by_hand():
    """The forward pass ends at the unit's layer: attention of one block and its gradient, by hand."""
    net, x = two_blocks(), wide_images()
    (first, _), (after, _), _ = attend_by_hand(net, x)
    (slope,) = torch.autograd.grad(after[:, 1:, 3].mean(1).sum(), first)

    found = le_grad(net, x, explainers.unit("blocks.0", 3))

    torch.testing.assert_close(found, class_row(net, slope.relu().mean((1, 2))), rtol=1e-10, atol=1e-14)


def test_grad_eclip_needs_the_queries_and_keys():
    with pytest.raises(UnsupportedModel, match=r"queries and keys of 'blocks.1.attn'.*attn_implementation='sdpa'"):
        explainers.grad_eclip(plain_vit(1, fused=False), wide_images(), CLASSES)
