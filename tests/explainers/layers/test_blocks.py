"""Blocks and skip connections of networks in which they are known by construction."""

from __future__ import annotations

import torch
import torchvision
from torch import Tensor, nn

from explainers import default_layer, list_layers
from explainers.blocks.partition import SkipConnection, network_blocks
from tests.support.nets import ClassToken, Written, plain, random_images, residual


def conv(channels: int = 4, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, 4, kernel, stride, kernel // 2)


def known() -> nn.Module:
    """All in one forward pass, so no module shows where a block ends: two convolutions each; a plain one between."""

    def squeeze_and_excite(self: nn.Module, x: Tensor) -> Tensor:
        """A gate, which is not a skip connection."""
        return x * torch.sigmoid(self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()))

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        x = self.sum(x + self.three(self.two(x).relu()))  # identity around two and three
        x = self.end(self.side(x) + self.gate(self.five(self.four(x).relu())))  # 1 x 1 around four, five and the gate
        return self.fc(self.out(self.six(x)).mean((2, 3)))

    convolutions = {name: conv() for name in ("two", "three", "four", "six")}
    convolutions |= {"one": conv(3), "five": conv(stride=2), "side": conv(kernel=1, stride=2)}
    gate = Written(squeeze_and_excite, squeeze=conv(kernel=1), excite=conv(kernel=1))
    others = {"out": nn.ReLU(), "fc": nn.Linear(4, 5), "sum": nn.Identity(), "end": nn.Identity()}
    return Written(forward, gate=gate, **convolutions, **others).double().eval()


def test_blocks_and_skips_of_a_network_in_one_forward() -> None:
    found = network_blocks(known(), random_images())
    assert [block.layer.name for block in found.blocks] == ["one", "sum", "end", "out", "fc"]
    assert list(found.skips) == [SkipConnection(1, 2), SkipConnection(2, 3, projected=True)]
    _, second, third, *_ = found.blocks
    assert [step.layer.name for step in second.steps] == ["two", "three", "sum"]
    assert second.skips == (SkipConnection(0, 2),)
    reasons = {step.layer.name: step.why for step in third.steps}
    assert {"four", "five", "gate.excite", "gate"} <= reasons.keys()
    assert (reasons["gate.squeeze"], reasons["side"], reasons["end"]) == ("one cell", "bypassed", "")
    found = network_blocks(plain(), random_images())
    assert len(found.blocks) >= 2 and not found.skips
    around = Written(lambda net, x: net.fc((2 * x[:, :1] + net.conv(x)).mean((2, 3))), conv=conv(3), fc=nn.Linear(4, 5))
    assert list(network_blocks(around.double().eval(), random_images()).skips) == [SkipConnection(0, 1)], "of the image"


def test_between_encoder_and_decoder_each_resolution_has_blocks() -> None:
    """The long connection is not the skip connection of one block, which would hide the lowest resolution."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.down(x).relu()
        x = self.join(torch.cat([x, self.up(self.bottom(self.pool(x)))], 1))
        return self.fc(x.mean((2, 3)))

    parts = {"down": conv(3), "bottom": nn.Sequential(conv(), nn.ReLU(), conv(kernel=1)), "join": conv(8)}
    net = Written(forward, **parts, pool=nn.MaxPool2d(2), up=nn.ConvTranspose2d(4, 4, 2, 2), fc=nn.Linear(4, 5))
    found = network_blocks(net.double().eval(), random_images())
    grids = {"down": (12, 16), "pool": (6, 8), "bottom": (6, 8), "up": (12, 16), "join": (12, 16), "fc": None}
    assert [(block.layer.name, block.layer.grid) for block in found.blocks] == list(grids.items())
    assert list(found.skips) == [SkipConnection(1, 4)]


def test_every_layer_is_in_one_step_and_the_default_layer_represents_its_block() -> None:
    for net, images in ((residual(), random_images()), (ClassToken().double(), random_images(height=32, width=128))):
        found = network_blocks(net.eval(), images)
        reasons = {name: step.why for block in found.blocks for step in block.steps for name in step.names}
        assert sorted(reasons) == sorted(layer.name for layer in list_layers(net, images) if layer.shape)
        default = default_layer(net, images)
        assert default in [block.layer.name for block in found.blocks] and reasons[default] in ("", "coarse")

    found = network_blocks(residual().eval(), random_images())
    assert [skip.end - skip.start for skip in found.skips] == [1, 1]
    for name, skip in zip(("layer1", "layer2"), found.skips, strict=True):
        block = found.blocks[int(skip.start)]
        assert name in block.steps[block.out].names
        assert {step.layer.path for step in block.steps[: block.out]} >= {f"{name}.conv1", f"{name}.bn2"}


def test_a_transformer_block_has_two_skips() -> None:
    net = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32).eval()
    found = network_blocks(net, torch.zeros(1, 3, 32, 32))
    first = next(k for k, block in enumerate(found.blocks) if "encoder.layers.encoder_layer_0" in block.layer.name)
    inside = [skip for skip in found.skips if first <= skip.start < first + 1]
    assert len(inside) == 2 and inside[0].end == inside[1].start and inside[1].end == first + 1
    reasons = {name: step.why for block in found.blocks for step in block.steps for name in step.names}
    assert reasons["encoder.ln"] == "class token" and reasons["heads"] == "no grid"
