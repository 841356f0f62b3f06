"""The user's own network: a factory, and its weights, labels, size, mean and std."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor

from saliscope import zoo as models
from saliscope.zoo import ModelUnavailable, catalog
from saliscope.zoo.overrides import IMAGENET, read_labels
from tests.saliscope.zoo.test_models_hf import assert_weights
from tests.support.catalog import isolate_catalog

CODE = """
import torch
from torch import nn
from saliscope.zoo.model import Model, Preparation

class Net(nn.Sequential):
    def __init__(self, channels=3, classes=4):
        super().__init__(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, classes))

class Zoo:
    build = Net

class Odd(nn.Module):
    def forward(self, x):
        return {"a": x}

class Detector(nn.Module):
    def forward(self, x):
        return [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)}]

def spoiled():
    net = Net()
    net[0].weight.data[0] = float("nan")
    return net

def overflows():
    net = Net()
    net[4].weight.data[:] = 3e38
    net[0].weight.data[:] = 1e38
    return net

def fails():
    raise KeyError("no data here")

def needs(size): ...

net = Net()
nothing = lambda: None
whole = lambda: Model("whole", Net(), ["a", "b", "c", "d"], Preparation(40, 48, (0.5,) * 3, (0.25,) * 3))
bands = lambda: Net(channels=5)
binary = lambda: Net(classes=1)
double = lambda: Net().double()
dense = lambda: nn.Conv2d(3, 6, 1)
mnist = lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 28 * 28, 10))
clips = lambda: nn.Sequential(nn.Conv3d(3, 4, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 4))
lazy = lambda: nn.Sequential(nn.LazyConv2d(8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))
"""
PHOTO = Image.effect_noise((90, 60), 80).convert("RGB")
SETTINGS: dict[str, Any] = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "size": 32}


@pytest.fixture(autouse=True)
def own_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the module `own_net` to a new working directory; use no downloads and no registered models."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    (tmp_path / "own_net.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(image: Image.Image, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Oracle: the steps in torchvision."""
    f = torchvision.transforms.functional
    return f.normalize(f.to_tensor(f.center_crop(f.resize(image, [size], antialias=True), [size])), mean, std)[None]


def test_factory_can_be_a_function_a_class_a_network_or_a_model() -> None:
    for name in ("own_net:Net", "own_net:Zoo.build", "own_net:net", "./own_net.py:Net", "own_net.py:Net"):
        model = models.load_model(name, labels=["a", "b", "c", "d"], **SETTINGS)
        assert model.labels == ["a", "b", "c", "d"] and model.task == "classification" and model.notes == ()
        assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
        torch.testing.assert_close(model.prepare(PHOTO), expected(PHOTO, 32, SETTINGS["mean"], SETTINGS["std"]))
    model = models.load_model("own_net:whole")
    assert model.labels == ["a", "b", "c", "d"] and model.preparation.resize == 48 and model.notes == ()
    other = models.load_model("own_net:whole", mean=[0.1, 0.2, 0.3], labels=["w", "x", "y", "z"])
    assert other.labels == ["w", "x", "y", "z"] and (other.preparation.side, other.preparation.resize) == (40, 48)
    assert (other.preparation.mean, other.preparation.std) == ((0.1, 0.2, 0.3), (0.25,) * 3)


def test_defaults_are_reported() -> None:
    with pytest.warns(UserWarning, match="is unknown; using (ImageNet|224 x 224 pixels)") as caught:
        model = models.load_model("own_net:Net")
    assert len(caught) == len(model.notes) == 2
    assert all("Set size=, mean= and std=" in str(warning.message) for warning in caught)
    assert (model.preparation.mean, model.preparation.std) == IMAGENET and model.side == 224
    assert model.labels == ["class 0", "class 1", "class 2", "class 3"]
    assert any("has one output" in note for note in models.load_model("own_net:binary", **SETTINGS).notes)


def test_properties_of_the_network_are_detected() -> None:
    with pytest.warns(UserWarning, match="using 28 x 28 pixels"):
        model = models.load_model("own_net:mnist", mean=[0.13], std=[0.31])
    assert model.channels == 1 and model.size == (28, 28) and len(model.labels) == 10
    torch.testing.assert_close(model.prepare(PHOTO), expected(PHOTO.convert("L"), 28, (0.13,), (0.31,)))
    with pytest.warns(UserWarning, match="using mean 0 and std 1"):
        assert models.load_model("own_net:bands", size=32).channels == 5
    model = models.load_model("own_net:bands", mean=[0.5], std=[0.25], size=(24, 40))
    assert model.preparation.mean == (0.5,) * 5 and model.prepare(torch.rand(5, 60, 70)).shape == (1, 5, 24, 40)
    raw = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "size": 32}
    with pytest.warns(UserWarning, match="applied to pixel values from 0 to 255"):
        model = models.load_model("own_net:Net", **raw)
    torch.testing.assert_close(model.prepare(PHOTO), expected(PHOTO, 32, *IMAGENET))
    double, lazy, dense, boxes = (
        models.load_model(f"own_net:{name}", **SETTINGS) for name in ("double", "lazy", "dense", "Detector")
    )
    assert {p.dtype for p in double.network.parameters()} == {torch.float32}
    assert len(lazy.labels) == 4 and not any(p.requires_grad for p in lazy.network.parameters())
    assert (dense.task, len(dense.labels)) == ("segmentation", 6)
    assert (boxes.task, boxes.labels) == ("detection", [])


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("own_net:none", {}, "own_net has no 'none'. Name a function"),
    ("own_net:nothing", {}, "returned NoneType. Return an nn.Module, a pair"),
    ("own_net:fails", {}, "raised KeyError: 'no data here'"),
    ("own_net:needs", {}, "raised TypeError: needs() missing 1 required"),
    ("not_here:Net", {}, "No module named 'not_here'"),
    ("src/net.py:Net", {}, "File not found: "),
    ("own_net:spoiled", SETTINGS, "has NaN or infinite weights: 0.weight"),
    ("own_net:overflows", SETTINGS, "returns NaN or infinity for a test image"),
    ("own_net:Odd", SETTINGS, "returns dict for one image. A classifier must return scores [1, classes]"),
    ("own_net:clips", SETTINGS, "takes videos or volumes, but the page and data sets show images"),
    ("own_net:mnist", SETTINGS, "fails on an input of shape [1, 3, 32, 32]"),
    ("own_net:Net", {**SETTINGS, "labels": ["a", "b"]}, "has 4 outputs but 2 labels were given"),
    ("own_net:Net", {"mean": [0.1] * 3}, "Only one of mean and std was given"),
    ("own_net:Net", {**SETTINGS, "std": [0.1, 0.0, 0.2]}, "Pass one value per channel, and a positive std"),
    ("own_net:Net", {**SETTINGS, "mean": [0.1, float("nan"), 0.2]}, "Pass one value per channel"),
    ("own_net:Net", {**SETTINGS, "size": 0}, "Invalid size 0. Pass pixels"),
    ("own_net:Net", {**SETTINGS, "weights": "none.pt"}, "none.pt does not exist"),
    ("resnet50:WRONG", {}, "Unknown model 'resnet50:WRONG'. Did you mean 'resnet50'"),
]


def test_errors_are_reported() -> None:
    for name, settings, message in ERRORS:
        with pytest.raises(ModelUnavailable) as caught:
            models.load_model(name, **settings)
        assert message in str(caught.value) and str(caught.value).endswith("."), (name, str(caught.value))


@pytest.mark.parametrize("name", ["googlenet", "efficientnet_lite0", "lraspp_mobilenet_v3_large"])
def test_custom_weights_in_a_listed_network(name: str) -> None:
    """The network has one output per label, and the preprocessing of the published weights by default."""
    built = catalog.source_of(name).build(name, 3).network
    torch.manual_seed(0)
    state = {k: torch.rand_like(v) / 40 if v.is_floating_point() else v for k, v in built.state_dict().items()}
    torch.save(state, "w.pt")

    model = models.load_model(name, weights="w.pt", labels=["x", "y", "z"])

    assert model.labels == ["x", "y", "z"] and model.notes == ()
    assert (model.task, model.side) == (("segmentation", 520) if "lraspp" in name else ("classification", 224))
    assert_weights(model, state)
    if model.task == "classification":
        assert models.load_model(name, weights="w.pt", labels=["x", "y", "z"], size=96).size == (96, 96)
    with pytest.raises(ModelUnavailable, match="Cannot load w.pt into"):
        models.load_model(name, weights="w.pt")


LABELS = {
    "l.txt": "tabby\n tiger cat \r\nfox\n\n",
    "bom.txt": "\ufefftabby\ntiger cat\nfox",
    "list.json": json.dumps(["tabby", "tiger cat", "fox"]),
    "names.json": json.dumps({"0": "tabby", "2": "fox", "1": "tiger cat"}),
    "indices.json": json.dumps({"fox": 2, "tabby": 0, "tiger cat": 1}),
    "imagenet.json": json.dumps({"0": ["n0", "tabby"], "1": ["n1", "tiger cat"], "2": ["n2", "fox"]}),
}


def test_labels_are_read_from_a_file(own_net: Path) -> None:
    for name, content in LABELS.items():
        (own_net / name).write_text(content, encoding="utf-8")
        assert read_labels(name) == read_labels(own_net / name) == ["tabby", "tiger cat", "fox"], name


def test_invalid_labels_are_reported(own_net: Path) -> None:
    for content, message in (
        (b"a\n\nb\n", "label 2 is empty"),
        (b"", "no labels found"),
        (b'{"0": "a", "2": "b"}', "the label of index 1 is missing"),
        (b'{"cat": "a"}', "the mapping must be from indices to names"),
        (b'["a", ', "is neither UTF-8 text nor valid JSON"),
        (b"\xff\xfe\x00", "is neither UTF-8 text nor valid JSON"),
    ):
        (own_net / "l.txt").write_bytes(content)
        with pytest.raises(ModelUnavailable, match=f"l.txt.*{message}"):
            models.load_model("own_net:Net", labels="l.txt", **SETTINGS)
