"""Blocks and skip connections of networks in which they are known by construction."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn

from explainers import default_layer, list_layers
from explainers.layers.blocks.partition import Skip, network_blocks
from tests.support.nets import ClassToken, plain, random_images, residual


class Gate(nn.Module):
    """Squeeze and excitation: a gate, which is not a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()))


class Known(nn.Module):
    """All in one forward pass, so no module shows where a block ends: two convolutions each; a plain one between."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.one, self.two, self.six = (nn.Conv2d(3 if k == 0 else width, width, 3, padding=1) for k in range(3))
        self.three, self.four = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.five, self.side = nn.Conv2d(width, width, 3, 2, padding=1), nn.Conv2d(width, width, 1, 2)
        self.gate, self.out, self.fc = Gate(width), nn.ReLU(), nn.Linear(width, 5)
        self.sum, self.end = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        x = self.sum(x + self.three(self.two(x).relu()))  # identity around two and three
        x = self.end(self.side(x) + self.gate(self.five(self.four(x).relu())))  # 1 x 1 around four, five and the gate
        return self.fc(self.out(self.six(x)).mean((2, 3)))


def test_blocks_and_skips_of_a_network_in_one_forward() -> None:
    found = network_blocks(Known().double().eval(), random_images())

    assert [block.layer.name for block in found.blocks] == ["one", "sum", "end", "out", "fc"]
    assert list(found.skips) == [Skip(1, 2), Skip(2, 3, projected=True)]
    plain_blocks = network_blocks(plain(), random_images())
    assert len(plain_blocks.blocks) >= 2 and not plain_blocks.skips


class EncoderDecoder(nn.Module):
    """A U-Net of two resolutions: the features before pooling are concatenated after upsampling."""

    def __init__(self, channels: int = 3, width: int = 4) -> None:
        super().__init__()
        self.down, self.pool = nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(2)
        self.bottom = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.up, self.join = nn.ConvTranspose2d(width, width, 2, 2), nn.Conv2d(2 * width, width, 3, padding=1)
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x).relu()
        x = self.join(torch.cat([x, self.up(self.bottom(self.pool(x)))], 1))
        return self.fc(x.mean((2, 3)))


def test_between_encoder_and_decoder_each_resolution_has_blocks() -> None:
    """The long connection is not the skip connection of one block, which would hide the lowest resolution."""
    found = network_blocks(EncoderDecoder().double().eval(), random_images())

    grids = [block.layer.grid for block in found.blocks]
    assert [block.layer.name for block in found.blocks] == ["down", "pool", "bottom", "up", "join", "fc"]
    assert grids == [(12, 16), (6, 8), (6, 8), (12, 16), (12, 16), None]
    assert list(found.skips) == [Skip(1, 4)]


def test_inside_a_block_the_skip_surrounds_the_bypassed_layers() -> None:
    _, second, third, *_ = network_blocks(Known().double().eval(), random_images()).blocks

    assert [step.layer.name for step in second.steps] == ["two", "three", "sum"]
    assert second.skips == (Skip(0, 2),)
    assert {"four", "five", "side", "gate.squeeze", "gate.excite", "gate"} <= {step.layer.name for step in third.steps}
    assert {step.layer.name: step.why for step in third.steps}["gate.squeeze"] == "one cell"
    assert {step.layer.name: step.why for step in third.steps}["side"] == "bypassed"
    assert {step.layer.name: step.why for step in third.steps}["end"] == ""


def test_residual_blocks_are_those_of_the_class() -> None:
    found = network_blocks(residual().eval(), random_images())

    bypassed = [found.blocks[int(skip.start)] for skip in found.skips]
    assert [skip.end - skip.start for skip in found.skips] == [1, 1]
    for name, block in zip(("layer1", "layer2"), bypassed, strict=True):
        assert name in block.steps[block.out].names
        assert {step.layer.path for step in block.steps[: block.out]} >= {f"{name}.conv1", f"{name}.bn2"}


def test_every_layer_is_in_one_step_and_the_default_layer_represents_its_block() -> None:
    for net, images in ((residual(), random_images()), (ClassToken().double(), random_images(height=32, width=128))):
        net.eval()
        found = network_blocks(net, images)
        names = [name for block in found.blocks for step in block.steps for name in step.names]

        assert sorted(names) == sorted(layer.name for layer in list_layers(net, images) if layer.shape)
        default = default_layer(net, images)
        assert default in [block.layer.name for block in found.blocks]
        assert next(step.why for block in found.blocks for step in block.steps if default in step.names) in (
            "",
            "coarse",
        )


@pytest.mark.parametrize(
    ("name", "blocks", "skips"),
    [
        ("resnet18", ["relu", "maxpool", "layer1.0", "layer1", "layer2.0", "layer2", "layer3.0", "layer3"], 8),
        ("shufflenet_v2_x0_5", ["conv1", "maxpool", "stage2.0", "stage2.1"], 13),
        ("squeezenet1_1", ["features.1", "features.2", "features.3", "features.4"], 0),
    ],
)
def test_published_networks_have_their_published_skips(name: str, blocks: list[str], skips: int) -> None:
    """Eight residual blocks; thirteen units that pass half their channels on; none."""
    net = torchvision.models.get_model(name, weights=None).eval()
    found = network_blocks(net, torch.zeros(1, 3, 64, 64))

    assert [block.layer.name for block in found.blocks][: len(blocks)] == blocks
    assert len(found.skips) == skips
    assert all(0 <= skip.start < skip.end <= len(found.blocks) for skip in found.skips)


def test_a_transformer_block_has_two_skips() -> None:
    net = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32).eval()
    found = network_blocks(net, torch.zeros(1, 3, 32, 32))
    first = next(k for k, block in enumerate(found.blocks) if "encoder.layers.encoder_layer_0" in block.layer.name)

    inside = [skip for skip in found.skips if first <= skip.start < first + 1]
    assert len(inside) == 2 and inside[0].end == inside[1].start and inside[1].end == first + 1
    reasons = {name: step.why for block in found.blocks for step in block.steps for name in step.names}
    assert reasons["encoder.ln"] == "class token" and reasons["heads"] == "no grid"
