"""AttnLRP and CP-LRP: rules by hand, implementations of attention, and torch's attention functions with every mask."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import UnsupportedOperation, attn_lrp, explain, lrp
from explainers.call.attention.watch import watch_attention
from explainers.rules.decompositions import multi_head
from explainers.rules.operations import Interception
from tests.explainers.relevance.test_relevance import Operation
from tests.support.nets import random_images, settle
from tests.support.oracles.attention import two_blocks, wide_images

CLASSES = [2, 0, 4]


# The rules


def applied(function):
    """A function of images without weights before it."""
    return nn.Sequential(Operation(function), nn.Flatten())


def test_products_by_hand():
    """Proposition 3.3: a_i b_j R / (2 z + ε) for both factors of a matrix product."""
    x, epsilon = random_images(1, 2, 3, 3), 0.05
    net = applied(lambda x: x[:, 0] @ x[:, 1])
    a, b = x[0]
    z = (a @ b)[1, 2]
    expected = torch.zeros_like(x[0])
    for k in range(3):
        part = a[1, k] * b[k, 2] * z / (2 * z + epsilon * z.sign())
        expected[0, 1, k] += part
        expected[1, k, 2] += part

    torch.testing.assert_close(attn_lrp(net, x, 5, epsilon=epsilon)[0], expected, rtol=1e-10, atol=1e-14)


def test_softmax_by_hand():
    """Proposition 3.1, entry by entry; a masked logit gets nothing."""
    x = random_images(1, 1, 2, 3)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    net = applied(lambda x: x.masked_fill(mask, -torch.inf).softmax(-1))
    with torch.no_grad():
        s = net(x)[0].view(2, 3)
    expected = torch.zeros(2, 3, dtype=x.dtype)
    for i in range(3):
        relevance = [float(s[1, j]) if j == 2 else 0.0 for j in range(3)]
        expected[1, i] = x[0, 0, 1, i] * (relevance[i] - s[1, i] * sum(relevance))

    torch.testing.assert_close(attn_lrp(net, x, 5)[0, 0], expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(attn_lrp(net, x, 0)[0, 0, :, 2], torch.zeros(2, dtype=x.dtype))


@pytest.mark.parametrize(
    "gate", [torch.sigmoid, F.silu, lambda x: x * x.sigmoid(), F.gelu], ids=["GLU", "SwiGLU", "written out", "GEGLU"]
)
def test_each_factor_of_a_gated_product_gets_half(gate):
    """Section 3.3.2; the activation of the gate passes its half on. In `lrp`, a sigmoid is a constant gate."""
    x = random_images(1, 2, 2, 2)
    net = applied(lambda x: x[:, 0] * gate(x[:, 1]))
    half = float(net(x)[0, 1]) / 2
    found = attn_lrp(net, x, 1)[0]

    assert found[:, 0, 1].tolist() == pytest.approx([half, half])
    assert float(found.abs().sum()) == pytest.approx(abs(2 * half))
    if gate is torch.sigmoid:
        assert lrp(net, x, 1)[0, :, 0, 1].tolist() == pytest.approx([2 * half, 0])


# Networks


def test_operations_without_a_rule_are_refused_and_the_absorbed_relevance_is_reported():
    with pytest.raises(UnsupportedOperation, match="AttnLRP has no rule"):
        attn_lrp(applied(torch.sin), random_images(1, 1, 2, 2), 0)
    e = explain("attn_lrp", two_blocks(), wide_images(), CLASSES)
    found = [f for row in e.findings for f in row if f.code == "absorbed"]
    assert found and all("constants, softmaxes absorb" in finding.sentence for finding in found)


N, HEADS, T, S, C = 2, 2, 5, 6, 8


def tensor(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def hidden(*shape):
    """Return a boolean mask, True for masked keys; the first key is never masked."""
    mask = tensor(*shape) > 0.3
    mask[..., 0] = False
    return mask


# softmax(q k) v


# Multi-head attention

ATTENTION_MASKS = {
    "none": None,
    "bool": hidden(T, T),
    "float": tensor(T, T),
    "bool by head": hidden(N * HEADS, T, T),
    "float by head": tensor(N * HEADS, T, T),
    "causal": torch.ones(T, T, dtype=torch.bool).triu(1),
}
PADDING = {"none": None, "bool": hidden(N, T), "float": tensor(N, T)}


@contextmanager
def intercept():
    """The mode of LRP and DeepLIFT."""
    mode = Interception(nn.Identity(), "a test")
    mode.rules = {"multi_head_attention_forward": multi_head}
    with mode:
        yield


def both_agree(attention, *inputs, **options):
    """Output and weights in either mode equal torch's."""
    expected = attention(*inputs, **options)
    for mode in (watch_attention(nn.Identity(), N, leaves=False), intercept()):
        with mode:
            actual = attention(*inputs, **options)
        for mine, its in zip(actual, expected, strict=True):
            assert (mine is None) == (its is None)
            if its is not None:
                torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multi_head_attention_with_every_mask():
    """The functional form, since the module converts boolean masks to additive ones before it calls it."""
    module = settle(nn.MultiheadAttention(C, HEADS).double())
    matrices = (module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    out = (module.out_proj.weight, module.out_proj.bias)
    inputs = [tensor(T, N, C) + k for k in range(3)]
    for mask, padding, weights in product(ATTENTION_MASKS, PADDING, [False, True]):
        options = {"attn_mask": ATTENTION_MASKS[mask], "key_padding_mask": PADDING[padding]}
        options |= {"need_weights": weights, "is_causal": mask == "causal"}
        both_agree(F.multi_head_attention_forward, *inputs, C, HEADS, *matrices, *out, **options)


def test_multi_head_attention_in_every_configuration():
    for built, averaged in product(({"batch_first": True}, {"bias": False}, {"kdim": 3, "vdim": 4}, {}), (True, False)):
        module = settle(nn.MultiheadAttention(C, HEADS, **built).double().train())
        shapes = [(T, N, C), (S, N, built.get("kdim", C)), (S, N, built.get("vdim", C))]
        inputs = [tensor(*shape) for shape in shapes]
        if "batch_first" in built:
            inputs = [x.transpose(0, 1) for x in inputs]
        padding = hidden(N, S)
        both_agree(module, *inputs, key_padding_mask=padding, average_attn_weights=averaged)
        if not built:
            unbatched = [x[:, 0] for x in inputs]
            both_agree(module, *unbatched, key_padding_mask=padding[0], average_attn_weights=averaged)
            both_agree(module, *unbatched, need_weights=False)
