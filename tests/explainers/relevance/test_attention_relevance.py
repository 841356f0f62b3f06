"""AttnLRP and CP-LRP: the rules by hand, conservation, and every implementation of attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import (
    UnsupportedOperation,
    attention_heads,
    attention_rollout,
    attn_lrp,
    cp_lrp,
    explain,
    le_grad,
    lrp,
    transformer_attribution,
)
from tests.explainers.relevance.test_attention import with_custom_attention
from tests.support.nets import plain, random_images, rel, settle
from tests.support.oracles.attention import two_blocks, wide_images

CLASSES = [2, 0, 4]
METHODS = [attn_lrp, cp_lrp]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


# The rules


def test_cp_lrp_is_lrp_with_the_epsilon_rule_everywhere():
    net, x = two_blocks(), wide_images()
    torch.testing.assert_close(cp_lrp(net, x, CLASSES), lrp(net, x, CLASSES, rule="epsilon"))
    assert rel(attn_lrp(net, x, CLASSES), cp_lrp(net, x, CLASSES)) > 0.01


class Applied(nn.Module):
    """A function of two images without weights before it."""

    def __init__(self, function) -> None:
        super().__init__()
        object.__setattr__(self, "function", function)

    def forward(self, x):
        return self.function(x).flatten(1)


def test_products_by_hand():
    """Proposition 3.3: a_i b_j R / (2 z + ε) for both factors of a matrix product."""
    x, epsilon = random_images(1, 2, 3, 3), 0.05
    net = Applied(lambda x: x[:, 0] @ x[:, 1])
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
    net = Applied(lambda x: x.masked_fill(mask, -torch.inf).softmax(-1))
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
    net = Applied(lambda x: x[:, 0] * gate(x[:, 1]))
    half = float(net(x)[0, 1]) / 2
    found = attn_lrp(net, x, 1)[0]

    assert found[:, 0, 1].tolist() == pytest.approx([half, half])
    assert float(found.abs().sum()) == pytest.approx(abs(2 * half))
    if gate is torch.sigmoid:
        assert lrp(net, x, 1)[0, :, 0, 1].tolist() == pytest.approx([2 * half, 0])


# Networks


def of_timm(fused):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.models.VisionTransformer((32, 48), 16, num_classes=7, embed_dim=12, depth=2, num_heads=2)
    for block in net.blocks:
        block.attn.fused_attn = fused
    return settle(net.double())


def of_hugging_face(fused):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=(32, 48),
        patch_size=16, num_labels=7, attn_implementation="sdpa" if fused else "eager",
    )  # fmt: skip
    torch.manual_seed(0)
    return settle(transformers.ViTForImageClassification(config).double())


def of_torch(fused):
    net = two_blocks()
    net.positions.data.zero_()
    return with_custom_attention(net, False) if fused else net


FORMS = {
    "nn.MultiheadAttention": of_torch,
    "fused kernel": lambda fused: with_custom_attention(of_torch(False), fused),
    "timm": of_timm,
    "transformers": of_hugging_face,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_implementation_of_attention_gives_the_same_map(form):
    """Identity: fused attention, or torch's module, and its single operations with the same weights."""
    x = random_images(1, 3, 32, 48) if form in ("timm", "transformers") else wide_images()
    nets = [FORMS[form](fused) for fused in (True, False)]
    for method in (attn_lrp, cp_lrp, attention_rollout, transformer_attribution, le_grad, attention_heads):
        found, expected = (method(net, x, 3) for net in nets)
        # The eager softmax of transformers runs in float32.
        assert rel(found, expected) < 1e-5 and found.any(), method


@each_method
def test_a_network_without_attention_gets_the_epsilon_rule(method):
    net, x = plain(), random_images()
    torch.testing.assert_close(method(net, x, [2, 0, 5]), lrp(net, x, [2, 0, 5], rule="epsilon"))
    gamma = lrp(net, x, [2, 0, 5], rule="gamma", gamma=0.4)
    torch.testing.assert_close(method(net, x, [2, 0, 5], rule="gamma", gamma=0.4), gamma)


def test_operations_without_a_rule_are_refused_and_the_absorbed_relevance_is_reported():
    with pytest.raises(UnsupportedOperation, match="AttnLRP has no rule"):
        attn_lrp(Applied(torch.sin), random_images(1, 1, 2, 2), 0)
    e = explain("attn_lrp", two_blocks(), wide_images(), CLASSES)
    found = [f for row in e.findings for f in row if f.code == "absorbed"]
    assert found and all("constants, softmaxes absorb" in finding.sentence for finding in found)
