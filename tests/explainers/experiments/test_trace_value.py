"""The arithmetic of one value compared with hooked values, and with patches and paths by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import explainers
from explainers import BadOption, UnsupportedOperation, trace_attention, trace_value
from tests.support.nets import Written, random_images, residual, settle
from tests.support.oracles.features import through
from tests.support.token_nets import conv_next, plain_vit, swin_v1, vit
from tests.support.traces import nothing_left


def test_blocks_and_other_networks() -> None:
    """Skip connections, pooling, layer norm, linear layers: the last sum before a layer, and the steps after it."""
    network, x = residual(), random_images(1)
    trace = trace_value(network, x, "layer2", 5, (3, 4))
    assert [step.kind for step in trace.steps] == ["batch_norm", "add", "activation"]
    skip = through(network, network.maxpool, x, torch.clone)[0][0, 5, 3, 4]
    assert trace.steps[1].numbers["added"] == pytest.approx(float(skip))
    logit = trace_value(network, x, "fc", 2)
    assert logit.value == pytest.approx(float(network(x)[0, 2])) == pytest.approx(logit.computed, rel=1e-9)
    large = random_images(1, height=64, width=64)
    for net, image, layer in (
        (residual(), random_images(1), "layer2"),
        (conv_next(), large, "features.3"),
        (swin_v1(), large, "features.3"),
        (vit(), large, "encoder.layers"),
    ):
        maps = explainers.feature_maps(net, image, layer=layer)[0]
        with nothing_left(net, image):
            trace = trace_value(net, image, layer, 1, (1, 0))
        assert trace.value == pytest.approx(float(maps[1, 1, 0])) == pytest.approx(trace.computed, rel=1e-9), layer


class Parts(nn.Module):
    """A grouped, strided and dilated convolution with padding, in-place functions, and a reader of the old values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.mix = nn.Conv2d(6, 5, 1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.norm(a)
        a.relu_()  # the batch norm has read the former values
        mixed = self.mix(functional.relu(b, inplace=True))
        return self.head(self.pool(mixed).mean((2, 3)))


def parts() -> tuple[Parts, Tensor]:
    net = settle(Parts().double())
    net.norm.running_mean.uniform_(-1, 1)
    net.norm.running_var.uniform_(0.5, 2)
    return net, random_images(1, 4).double()


def test_a_patch_by_hand() -> None:
    """Oracle: the elements of the padded image; the former values of a tensor that was changed in place."""
    net, x = parts()
    padded = functional.pad(x, (2, 2, 2, 2))
    for channel, (row, column) in ((1, (0, 0)), (5, (3, 4)), (3, (5, 7))):
        trace = trace_value(net, x, "norm", channel, (row, column))
        total, group = trace.sum, channel // 3
        patch = padded[0, 2 * group : 2 * group + 2, 2 * row : 2 * row + 5 : 2, 2 * column : 2 * column + 5 : 2]
        torch.testing.assert_close(total.inputs, patch)
        torch.testing.assert_close(total.weights, net.first.weight[channel].detach())
        assert total.bias == float(net.first.bias[channel]) and total.channels == range(2 * group, 2 * group + 2)
        assert total.rows == tuple(2 * row - 2 + 2 * k for k in range(3))
        assert total.columns == tuple(2 * column - 2 + 2 * k for k in range(3))
        inside = [[0 <= r < 12 and 0 <= c < 16 for c in total.columns] for r in total.rows]
        assert total.inside.tolist() == [inside, inside]
        (step,) = trace.steps
        assert step.before == pytest.approx(total.total)
        assert step.numbers["mean"] == float(net.norm.running_mean[channel])
        norm = nn.functional.batch_norm(
            net.first(x), net.norm.running_mean, net.norm.running_var, net.norm.weight, net.norm.bias
        )
        assert trace.value == pytest.approx(float(norm[0, channel, row, column])) == pytest.approx(trace.computed)
        largest = max((float(p.abs()), k) for k, p in enumerate(total.products.flatten()))[1]
        assert total.strongest(1)[0] == tuple(int(i) for i in torch.unravel_index(torch.tensor(largest), (2, 3, 3)))


def test_the_strongest_path_by_hand() -> None:
    """Oracle: the largest products, sum by sum, of values that torch computes."""
    net, x = parts()
    trace = trace_value(net, x, "head", 2)
    assert [step.name for step in trace.path] == ["head", "", "mix"] and trace.path[1].kind == "mean"
    b = net.norm(net.first(x)).relu()
    mixed = net.mix(b)
    pooled = net.pool(mixed)
    means = pooled.mean((2, 3))[0]
    channel = int((means * net.head.weight[2]).abs().argmax())
    assert trace.path[0].channel == channel and trace.path[0].product == pytest.approx(
        float(means[channel] * net.head.weight[2, channel])
    )
    cell = divmod(int(pooled[0, channel].abs().argmax()), pooled.shape[3])
    window = mixed[0, channel, 2 * cell[0] : 2 * cell[0] + 2, 2 * cell[1] : 2 * cell[1] + 2]
    best = divmod(int(window.argmax()), 2)
    at = (2 * cell[0] + best[0], 2 * cell[1] + best[1])
    assert trace.path[1].channel == channel and trace.path[1].cell == at
    products = b[0, :, at[0], at[1]] * net.mix.weight[channel, :, 0, 0]
    assert trace.path[2].channel == int(products.abs().argmax()) and trace.path[2].cell == at
    assert len(trace_value(net, x, "head", 2, path=9).path) == 4, "up to the image"
    assert trace_value(net, x, "first", 0, (0, 0), path=2).path[0].name == "first"


@pytest.mark.parametrize("fused", [True, False])
def test_attention_scores_of_small_transformers(fused: bool) -> None:
    """Oracle: queries and keys of the layer's own projection, and the softmax of their products."""
    net, x = plain_vit(1, fused=fused), random_images(1, height=32, width=48).double()
    tokens, _ = through(net, net.blocks[1].norm1, x, torch.clone)
    q, k, _ = net.blocks[1].attn.qkv(tokens).reshape(1, 7, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    weights = (q @ k.mT / 2).softmax(-1)
    for head, query, key in ((0, 0, 0), (1, 2, 6), (1, 6, 3)):
        with nothing_left(net, x):
            trace = trace_attention(net, x, "blocks.1", head=head, query=query, key=key)
        assert trace.value == pytest.approx(float(weights[0, head, query, key]))
        assert trace.computed == pytest.approx(trace.value, rel=1e-9)
        scale = 1 if fused else 0.5  # the explicit one scales the queries
        torch.testing.assert_close(trace.sum.inputs, scale * q[0, head, query].detach())
        torch.testing.assert_close(trace.sum.weights, k[0, head, key].detach())
        assert [step.kind for step in trace.steps] == (["scale", "softmax"] if fused else ["softmax"])
    multi, x = vit(), random_images(1, height=64, width=64)
    expected = explainers.attention_heads(multi, x, layer="encoder.layers.encoder_layer_1")[0][1].flatten()[5]
    trace = trace_attention(multi, x, "encoder.layers.encoder_layer_1", head=1, query=0, key=6)
    assert trace.value == pytest.approx(float(expected)) == pytest.approx(trace.computed)
    assert "softmax" in str(trace) and "8 products" in str(trace)


def test_operations_without_products_are_refused() -> None:
    up = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 4, 2, 2)).double().eval()
    with pytest.raises(UnsupportedOperation, match="transposed convolution"):
        trace_value(up, random_images(1), "1", 0, (0, 0))

    summed = Written(lambda _, x: x.cumsum(1))
    net = nn.Sequential(nn.Conv2d(3, 4, 1), summed, nn.Conv2d(4, 4, 1)).double().eval()
    with pytest.raises(UnsupportedOperation, match="the operation cumsum"):
        trace_value(net, random_images(1), "1", 0, (0, 0))
    assert len(trace_value(net, random_images(1), "2", 0, (0, 0)).path) == 1, "the path ends there"
    with pytest.raises(BadOption, match="head=2 does not exist"):
        trace_attention(plain_vit(1), random_images(1, height=32, width=48).double(), "blocks.0", head=2)
    with pytest.raises(explainers.UnsupportedModel, match="contains no attention"):
        trace_attention(plain_vit(1), random_images(1, height=32, width=48).double(), "norm")
