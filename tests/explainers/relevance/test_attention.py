"""Attention methods: recorded weights for every implementation of attention, aggregation rules, refusals."""

from __future__ import annotations

import functools

import pytest
import torch
import torchvision
from torch import Tensor, nn

from explainers import (
    METHODS,
    UnsupportedModel,
    attention_heads,
    attention_rollout,
    check_explainer,
    explain,
    grad_eclip,
    le_grad,
    token_pca,
    transformer_attribution,
    unit,
)
from explainers.passes.attention.record import record_attention
from explainers.passes.attention.watch import watch_attention
from tests.support.nets import ClassToken, random_images, residual, settle
from tests.support.oracles.attention import attend_by_hand, class_row, slopes_by_hand, two_blocks, wide_images
from tests.support.token_nets import PlainViT, conv_next, max_vit, plain_vit, swin_v1, swin_v2, vit

ATTENTION = ["attention_rollout", "transformer_attribution", "le_grad", "attention_heads"]
CLASSES = [2, 0, 4]


# The weights


def with_custom_attention(net: nn.Module, fused: bool) -> nn.Module:
    """The same network with one Linear for q, k and v, and with its own attention instead of PyTorch's module."""
    other = plain_vit(1, fused=fused)
    with torch.no_grad():
        other.patch.weight.copy_(net.conv_proj.weight)
        other.patch.bias.copy_(net.conv_proj.bias)
        other.tokens.copy_(net.class_token)
        other.norm, other.head = net.ln, net.head
        for mine, block in zip(other.blocks, net.blocks, strict=True):
            mine.norm1, mine.norm2, mine.mlp = block.ln_1, block.ln_2, block.mlp
            mine.attn.qkv.weight.copy_(block.attention.in_proj_weight)
            mine.attn.qkv.bias.copy_(block.attention.in_proj_bias)
            mine.attn.proj = block.attention.out_proj
    return other


@pytest.mark.parametrize("fused", [True, False], ids=["fused kernel", "softmax written out"])
@pytest.mark.parametrize("name", ATTENTION)
def test_every_implementation_of_attention_gives_the_same_map(name, fused):
    """Identity: `nn.MultiheadAttention` and hand-written attention of the same weights."""
    net = two_blocks()
    with torch.no_grad():
        net.positions.zero_()
    expected = METHODS[name](net, wide_images(), CLASSES)

    actual = METHODS[name](with_custom_attention(net, fused), wide_images(), CLASSES)

    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


def test_grad_eclip_needs_the_queries_and_keys():
    """Identity of `nn.MultiheadAttention` and torch's function; attention without this function is refused by name."""
    net = two_blocks()
    with torch.no_grad():
        net.positions.zero_()
    fused = with_custom_attention(net, True)
    torch.testing.assert_close(
        grad_eclip(fused, wide_images(), CLASSES), grad_eclip(net, wide_images(), CLASSES), rtol=1e-10, atol=1e-14
    )
    with pytest.raises(UnsupportedModel, match=r"queries and keys of 'blocks.1.attn'.*attn_implementation='sdpa'"):
        grad_eclip(with_custom_attention(net, False), wide_images(), CLASSES)


def test_weights_and_gradients_by_hand():
    """Oracle: softmaxes and matrix products by hand, with autograd's gradient at those weights."""
    net, x = two_blocks(), wide_images()
    weights, slopes = slopes_by_hand(net, x, CLASSES)

    seen = record_attention(net, x, CLASSES, gradients=True)

    for actual, expected in zip(seen.weights + seen.gradients, weights + slopes, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-15)
    assert (seen.grid, seen.extra_tokens) == ((2, 8), 1)


def test_gradients_by_finite_differences():
    """Oracle: central differences in one attention weight of the first block at a time."""
    net, x = two_blocks((1, 2)), random_images(1, 3, 16, 32)
    (first, _), _, _ = attend_by_hand(net, x)
    seen = record_attention(net, x, 3, gradients=True)

    def score(weights: Tensor) -> float:
        with torch.no_grad(), watch_attention(net, len(x), leaves=False) as calls:
            # The first block's recorded weights are replaced before they are multiplied with the values.
            keep, mode = calls, torch.overrides._get_current_function_mode()
            inner = mode.keep
            mode.keep = lambda each: (inner(each), weights if len(keep.attentions) == 1 else each)[1]
            return float(net(x)[0, 3])

    for head, row, column in ((0, 0, 1), (1, 0, 2), (0, 2, 1), (1, 1, 0)):
        step = torch.zeros_like(first)
        step[0, head, row, column] = 1e-5
        slope = (score(first.detach() + step) - score(first.detach() - step)) / 2e-5
        assert slope == pytest.approx(float(seen.gradients[0][0, head, row, column]), rel=1e-6, abs=1e-11)


class Masked(nn.Module):
    """Attention with a key padding mask and an attention mask, `need_weights=True`, batch first or second."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.patch = nn.Conv2d(3, 8, 16, 16)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        later = torch.ones(8, 8, dtype=torch.bool).triu(2)
        hidden = torch.zeros(len(x), 8, dtype=torch.bool)
        hidden[:, 3] = True
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        mixed, weights = self.attention(tokens, tokens, tokens, key_padding_mask=hidden, attn_mask=later)
        mixed = mixed if self.batch_first else mixed.transpose(0, 1)
        return self.head(mixed.mean(1) + weights.mean((1, 2))[:, None])


@pytest.mark.parametrize("batch_first", [True, False])
def test_recording_with_masks_leaves_the_scores_unchanged(batch_first):
    """Identity: recording leaves the scores unchanged; masked keys have weight 0."""
    net, x = settle(Masked(batch_first).double()), random_images(2, 3, 32, 64)

    with torch.no_grad(), watch_attention(net, len(x), leaves=False) as seen:
        scores = net(x)

    torch.testing.assert_close(scores, net(x).detach(), rtol=1e-12, atol=1e-14)
    (only,) = seen.attentions
    assert only.path == "attention" and only.weights.shape == (2, 2, 8, 8)
    assert not only.weights[..., 3].any() and not only.weights.triu(2).any()


@pytest.mark.parametrize("norm_first", [True, False])
def test_pytorchs_encoder_is_recorded_without_its_fast_path(norm_first):
    """In eval mode `nn.TransformerEncoder` runs one fused kernel, whose attention weights cannot be recorded."""

    class Encoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 8, 16, 16)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(self.patch(x).flatten(2).mT).mean(1))

    net, x = settle(Encoded().double()).requires_grad_(False), random_images(2, 3, 32, 128)
    for name in ATTENTION:
        found = METHODS[name](net, x, 1)
        assert found.shape[-2:] == (2, 8) and found.flatten(1).std(1).min() > 0
    torch.testing.assert_close(explain("le_grad", net, x, 1).scores, net(x), rtol=1e-10, atol=1e-12)


# The rules


@pytest.mark.parametrize("fusion", ["max", "min"])
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_rollout_with_max_and_min_head_fusion_by_hand(fusion, ratio):
    """By hand, entry by entry: the smallest weights of a block are discarded, rows renormalized."""
    net, x = two_blocks(), wide_images()
    rows = []
    for blocks in zip(*(each.detach() for each in attend_by_hand(net, x)[0]), strict=True):
        rolled = torch.eye(17, dtype=x.dtype)
        for a in blocks:
            fused = torch.maximum(a[0], a[1]) if fusion == "max" else torch.minimum(a[0], a[1])
            ordered = sorted(fused.flatten().tolist())
            kept = [value if value >= ordered[int(ratio * 288)] else 0.0 for value in fused.flatten().tolist()]
            mixed = torch.tensor(kept, dtype=x.dtype).view(17, 17) + torch.eye(17, dtype=x.dtype)
            rolled = (mixed / mixed.sum(1, keepdim=True)) @ rolled
        rows.append(rolled[0])
    expected = class_row(net, torch.stack(rows))

    actual = attention_rollout(net, x, CLASSES, head_fusion=fusion, discard_ratio=ratio)

    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


def test_rollout_is_positive_and_sums_to_at_most_one():
    """Identity: the sum is one minus the class token's own weight, or one for pooled patches."""
    shares = attention_rollout(two_blocks(), wide_images())
    pooled = attention_rollout(plain_vit(0, "patches"), wide_images())

    assert (shares > 0).all() and (shares.sum((1, 2)) < 1).all()
    torch.testing.assert_close(pooled.sum((1, 2)), torch.ones(3, dtype=pooled.dtype))


@pytest.mark.parametrize(
    ("extra", "reads", "rows"),
    [
        (1, "first", [0]),
        (5, "first", [0]),
        (2, "two", [0, 1]),
        (0, "patches", range(16)),
        (4, "patches", range(4, 20)),
    ],
)
def test_readout_rows_are_the_tokens_the_head_reads(extra, reads, rows):
    """By hand: the tokens that the head reads, with any number of extra tokens before the patches."""
    net, x = plain_vit(extra, reads), wide_images()
    seen = record_attention(net, x, CLASSES, gradients=True)
    expected = torch.zeros(3, 16 + extra, dtype=x.dtype)
    expected[:, list(rows)] = 1 / len(rows)

    torch.testing.assert_close(seen.readout_weights, expected)
    relevance = torch.eye(16 + extra, dtype=x.dtype).expand(3, -1, -1)
    for a, g in zip(seen.weights, seen.gradients, strict=True):
        relevance = relevance + (a * g).clamp(min=0).mean(1) @ relevance
    by_hand = relevance[:, list(rows)].mean(1)[:, extra:].reshape(3, 2, 8)
    torch.testing.assert_close(transformer_attribution(net, x, CLASSES), by_hand, rtol=1e-10, atol=1e-14)


def test_attribution_depends_on_the_class_and_rollout_does_not():
    net, x = two_blocks(), wide_images()

    assert torch.equal(attention_rollout(net, x, 1), attention_rollout(net, x, 3))
    assert not torch.allclose(transformer_attribution(net, x, 1), transformer_attribution(net, x, 3))
    assert not torch.allclose(le_grad(net, x, 1), le_grad(net, x, 3))


def test_le_grad_of_mean_tokens_by_hand():
    """Oracle: the head on the mean of all tokens after each block, and the gradient only at that block."""
    net, x = two_blocks(), wide_images()
    weights, after, _ = attend_by_hand(net, x)
    total = torch.zeros(3, 17, dtype=x.dtype)
    for a, tokens in zip(weights, after, strict=True):
        scores = net.head(net.ln(tokens.mean(1)))
        (slope,) = torch.autograd.grad(scores[range(3), CLASSES].sum(), a, retain_graph=True)
        total += slope.relu().mean((1, 2)) / 2

    actual = le_grad(net, x, CLASSES, score="mean_token")

    torch.testing.assert_close(actual, class_row(net, total), rtol=1e-10, atol=1e-14)


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

    class Flat(ClassToken):
        def forward(self, x: Tensor) -> Tensor:
            tokens = self.conv_proj(x).flatten(2).mT
            for attention in (self.first, self.second):
                tokens = tokens + attention(tokens, tokens, tokens)[0]
            return self.head(tokens.mean(1))

    net = Flat()
    net.first, net.second = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in "ab")
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


def test_token_pca_maps_are_centerd_orthogonal_and_ordered():
    """Identities: maps are centered and orthogonal, variances descend and sum to the total variance."""
    net, x = residual(), random_images()
    maps = token_pca(net, x, layer="layer2", components=6).flatten(2)
    a = METHODS["feature_maps"](net, x, layer="layer2").flatten(2)

    spreads = maps.square().sum(2)
    torch.testing.assert_close(maps.sum(2), torch.zeros(3, 6, dtype=maps.dtype), rtol=0, atol=1e-9)
    torch.testing.assert_close(maps @ maps.mT, torch.diag_embed(spreads), rtol=1e-9, atol=1e-9)
    assert (spreads.diff(dim=1) <= 0).all()
    torch.testing.assert_close(spreads.sum(1), (a - a.mean(2, keepdim=True)).square().sum((1, 2)))
    assert (maps.amax(2) >= -maps.amin(2)).all()


def test_token_pca_components_beyond_the_rank_are_zero():
    """Six channels have six components, a constant image none."""
    net, x = residual(), random_images(1)
    assert token_pca(net, x, layer="layer2", components=9)[:, 6:].eq(0).all()
    flat = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert token_pca(flat.double(), torch.full_like(x, 0.3), layer="0").eq(0).all()


def test_token_pca_works_on_every_layout():
    for build, size in ((vit, (64, 64)), (swin_v2, (64, 96)), (max_vit, (64, 64)), (conv_next, (64, 96))):
        found = token_pca(build(), random_images(2, 3, *size), components=2)
        assert found.shape[:2] == (2, 2) and found.flatten(2).std(2).min() > 0


# Refusals, contracts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("build", "size", "word"), [
    (residual, (12, 16), "no attention between tokens"), (conv_next, (64, 96), "no attention between tokens"),
    (swin_v1, (64, 96), "ShiftedWindowAttention"), (swin_v2, (64, 96), "ShiftedWindowAttentionV2"),
    (max_vit, (64, 64), "windowed attention"),
    (lambda: torch.jit.trace(two_blocks(), wide_images(), check_trace=False), (32, 128), "traced"),
    (lambda: torch.export.export(two_blocks(), (wide_images(),)).module(), (32, 128), "exported"),
], ids=["convolutions", "convnext", "swin", "swin v2", "maxvit", "traced", "exported"])  # fmt: skip
def test_networks_without_attention_among_all_tokens_are_refused(build, size, word):
    net = build()
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


def test_zero_gradient_is_a_finding():
    e = explain("transformer_attribution", two_blocks(), wide_images(), lambda scores: scores[:, 0] * 0)

    assert not e.raw.any() and all("no_gradient" in [each.code for each in row] for row in e.findings)


def test_le_grad_of_a_unit_by_hand():
    """The forward pass ends at the unit's layer: attention of one block and its gradient, by hand."""
    net, x = two_blocks(), wide_images()
    (first, _), (after, _), _ = attend_by_hand(net, x)
    (slope,) = torch.autograd.grad(after[:, 1:, 3].mean(1).sum(), first)

    found = le_grad(net, x, unit("blocks.0", 3))

    torch.testing.assert_close(found, class_row(net, slope.relu().mean((1, 2))), rtol=1e-10, atol=1e-14)


@functools.cache
def small() -> nn.Module:
    return settle(ClassToken((2, 3)))


@pytest.mark.sample
@pytest.mark.parametrize("name", [*ATTENTION, "token_pca"])
def test_every_contract_check_passes(name):
    report = check_explainer(METHODS[name], model=small(), images=random_images(3, 3, 32, 48).float())

    assert report, report


@pytest.mark.parametrize("name", [*ATTENTION, "token_pca"])
def test_a_map_keeps_nothing_larger_alive(name):
    """A view would keep all attention weights alive: 12 heads of 197 x 197 for a map of 14 x 14."""
    found = METHODS[name](two_blocks(), wide_images(), 1)

    assert found._base is None and found.untyped_storage().nbytes() == found.numel() * 8


def test_which_attention_methods_are_scale_free():
    message = {name for name in ATTENTION if METHODS[name].scale_free}
    assert "attention_rollout" in message and "transformer_attribution" not in message and "le_grad" not in message


@pytest.mark.parametrize(("name", "options", "word"), [
    ("attention_rollout", {"head_fusion": "median"}, "mean, max, min"), ("le_grad", {"score": "class"}, "logit"),
    ("attention_rollout", {"discard_ratio": 1.0}, "0 to 0.99"), ("attention_heads", {"query": "all"}, "class, mean"),
    ("token_pca", {"components": 0}, "1 to 64"), ("le_grad", {"layer": "blocks.0"}, "no option 'layer'"),
])  # fmt: skip
def test_wrong_options_are_refused_with_the_valid_values(name, options, word):
    with pytest.raises(ValueError, match=word):
        METHODS[name](two_blocks(), wide_images(), 1, **options)


def test_torchvision_layer_names():
    """A small instance of `vit_b_16`'s class: its layers are addressed by their usual names."""
    net = settle(torchvision.models.VisionTransformer(96, 32, 2, 3, 12, 24, num_classes=5))
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))

    e = explain("attention_heads", net, x, layer="encoder.layers.encoder_layer_0")

    assert e.raw.shape == (1, 3, 3, 3) and e.layer == "encoder.layers.encoder_layer_0"
    assert explain("attention_heads", net, x).layer == "encoder.layers.encoder_layer_1.self_attention"
