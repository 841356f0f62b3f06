"""One's own network: a function that builds it, its weights, labels, size, mean and std."""

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

import explainers
import models
from models import ModelUnavailable, zoo
from models.own import IMAGENET, read_labels

CODE = """
import torch
from torch import nn
from models.model import Model, Preparation

class Net(nn.Sequential):
    def __init__(self, channels=3, classes=4):
        super().__init__(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, classes))

class Mnist(nn.Sequential):
    "Runs at 28 pixels alone."
    def __init__(self):
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 28 * 28, 10))

class Odd(nn.Module):
    def forward(self, x):
        return {"a": x}

class Zoo:
    build = Net

def whole():
    return Model("whole", Net(), ["a", "b", "c", "d"], Preparation(40, 48, (0.5,) * 3, (0.25,) * 3))

def bands():
    return Net(channels=5)

def spoiled():
    net = Net()
    net[0].weight.data[0] = float("nan")
    return net

def overflows():
    net = Net()
    net[4].weight.data[:] = 3e38
    net[0].weight.data[:] = 1e38
    return net

def dense():
    return nn.Conv2d(3, 6, 1)

def lazy():
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))

def double():
    return Net().double()

def detector():
    class Detector(nn.Module):
        def forward(self, x):
            return [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)}]
    return Detector()

net = Net()
number = 3

def fails():
    raise KeyError("no data here")

def nothing():
    return None

def needs(size):
    return Net()
"""
PHOTO = Image.effect_noise((90, 60), 80).convert("RGB")
SAID: dict[str, Any] = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "size": 32}


@pytest.fixture(autouse=True)
def own_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module `own_net` in a working directory of its own; no network, nothing registered."""
    for name in ("HOOKLENS_MODEL", "HOOKLENS_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOOKLENS_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(zoo, "_ADDED", {})
    monkeypatch.setattr(zoo, "_SETTINGS", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    (tmp_path / "own_net.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(photo: Image.Image, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Oracle: torchvision's steps."""
    f = torchvision.transforms.functional
    return f.normalize(f.to_tensor(f.center_crop(f.resize(photo, [size], antialias=True), [size])), mean, std)[None]


@pytest.mark.parametrize(
    "name", ["own_net:Net", "own_net:Zoo.build", "own_net:net", "./own_net.py:Net", "own_net.py:Net"]
)
def test_a_function_a_class_or_a_network_is_named(name: str) -> None:
    model = models.load_model(name, labels=["a", "b", "c", "d"], **SAID)

    assert model.labels == ["a", "b", "c", "d"] and model.task == "classification" and model.notes == ()
    assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
    torch.testing.assert_close(model.prepare(PHOTO), expected(PHOTO, 32, SAID["mean"], SAID["std"]))
    shown = explainers.explain("grad_cam", model.network, model.prepare(PHOTO))
    assert shown.raw.shape == (1, 32, 32)


def test_a_factory_may_give_a_whole_model() -> None:
    model = models.load_model("own_net:whole")

    assert model.labels == ["a", "b", "c", "d"] and model.preparation.resize == 48 and model.notes == ()
    other = models.load_model("own_net:whole", mean=[0.1, 0.2, 0.3], labels=["w", "x", "y", "z"])
    assert other.labels == ["w", "x", "y", "z"]
    assert (other.preparation.mean, other.preparation.std) == ((0.1, 0.2, 0.3), (0.25,) * 3)
    assert (other.preparation.side, other.preparation.resize) == (40, 48)


def test_what_is_assumed_is_said() -> None:
    with pytest.warns(UserWarning, match="is said about the preprocessing|is assumed to have 224 x 224 pixels") as said:
        model = models.load_model("own_net:Net")
    assert len(said) == 2 and all("Give size=, mean= and std=" in str(warning.message) for warning in said)

    assert (model.preparation.mean, model.preparation.std) == IMAGENET and model.side == 224
    assert model.labels == ["class 0", "class 1", "class 2", "class 3"]
    assert [note[:35] for note in model.notes] == [
        "Nothing is said about the preproces",
        "The input of 'own_net:Net' is assum",
    ]


def test_the_size_and_the_channels_are_found_by_trying() -> None:
    with pytest.warns(UserWarning, match="is assumed to have 28 x 28 pixels"):
        model = models.load_model("own_net:Mnist", mean=[0.13], std=[0.31])

    assert model.channels == 1 and model.size == (28, 28) and len(model.labels) == 10
    torch.testing.assert_close(model.prepare(PHOTO), expected(PHOTO.convert("L"), 28, (0.13,), (0.31,)))
    with pytest.warns(UserWarning, match="mean 0 and std 1 are assumed"):
        assert models.load_model("own_net:bands", size=32).channels == 5


def test_one_value_stands_for_every_channel_and_a_size_may_be_two() -> None:
    model = models.load_model("own_net:bands", mean=[0.5], std=[0.25], size=(24, 40))

    assert model.preparation.mean == (0.5,) * 5 and model.size == (24, 40)
    assert model.prepare(torch.rand(5, 60, 70)).shape == (1, 5, 24, 40)


def test_mean_and_std_may_be_of_values_up_to_255() -> None:
    raw = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "size": 32}
    with pytest.warns(UserWarning, match="of pixel values from 0 to 255"):
        model = models.load_model("own_net:Net", **raw)

    torch.testing.assert_close(model.prepare(PHOTO), expected(PHOTO, 32, *IMAGENET))


def test_the_network_runs_in_float32() -> None:
    model = models.load_model("own_net:double", **SAID)

    assert {p.dtype for p in model.network.parameters()} == {torch.float32}


def test_the_task_is_seen_in_the_output() -> None:
    dense, boxes = (models.load_model(f"own_net:{name}", **SAID) for name in ("dense", "detector"))

    assert (dense.task, len(dense.labels)) == ("segmentation", 6)
    assert (boxes.task, boxes.labels) == ("detection", [])


@pytest.mark.parametrize(
    ("name", "said", "sentence"),
    [
        ("own_net:none", {}, "own_net has no 'none'. Name a function"),
        ("own_net:number", {}, "'own_net:number' is int. Name a function"),
        ("own_net:nothing", {}, "'own_net:nothing' gave NoneType. It must give an nn.Module or a models.Model"),
        ("own_net:fails", {}, "'own_net:fails' failed with KeyError: 'no data here'"),
        ("own_net:needs", {}, "'own_net:needs' failed with TypeError: needs() missing 1 required"),
        ("not_here:Net", {}, "There is no module 'not_here' here"),
        ("models.net:Net", {}, "this name is taken by Hooklens itself; name the file, as folder/file.py:factory"),
        ("src/net.py:Net", {}, "There is no file "),
        ("own_net:spoiled", SAID, "'own_net:spoiled' has NaN or infinite weights: 0.weight"),
        ("own_net:overflows", SAID, "gives NaN or infinity for a plain picture. Check its weights"),
        ("own_net:Odd", SAID, "'own_net:Odd' gives dict for one picture: a classifier gives [1, classes]"),
        ("own_net:Mnist", SAID, "does not run on an input of [1, 3, 32, 32]"),
        ("own_net:Mnist", {"mean": [0.1], "std": [0.2], "size": 30}, "does not run on an input of [1, 1, 30, 30]"),
        ("own_net:Net", {**SAID, "labels": ["a", "b"]}, "2 labels were given for 'own_net:Net', which has 4 outputs"),
        ("own_net:Net", {"mean": [0.1] * 3}, "Only one of mean and std was given for 'own_net:Net': give both"),
        ("own_net:Net", {**SAID, "std": [0.1, 0.0, 0.2]}, "give one value a channel, and a std above 0"),
        ("own_net:Net", {**SAID, "mean": [0.1, 0.2]}, "give one value a channel"),
        ("own_net:Net", {**SAID, "mean": [0.1, float("nan"), 0.2]}, "give one value a channel"),
        ("own_net:Net", {**SAID, "size": 0}, "The size 0 is none: give pixels"),
        ("own_net:Net", {**SAID, "weights": "none.pt"}, "none.pt does not exist"),
        ("resnet18", {"weights": "none.pt"}, "none.pt does not exist"),
        ("resnet50:WRONG", {}, "There is no model 'resnet50:WRONG': did you mean 'resnet50'"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_words(name: str, said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        models.load_model(name, **said)

    assert sentence in str(caught.value) and str(caught.value).endswith("."), str(caught.value)


def test_weights_of_ones_own_fill_the_network(own_net: Path) -> None:
    net = models.load_model("own_net:Net", **SAID).network
    torch.save({"state_dict": {f"module.{k}": v + 1 for k, v in net.state_dict().items()}}, "w.pt")

    with pytest.warns(UserWarning):
        model = models.load_model("own_net:Net", weights="w.pt", **SAID)

    assert all(torch.equal(v, net.state_dict()[k] + 1) for k, v in model.network.state_dict().items())
    assert model.notes == ("w.pt: the weights were under ['state_dict'], 'module.' was taken off the names.",)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "googlenet", "efficientnet_lite0"])
def test_weights_of_ones_own_in_a_listed_network(name: str) -> None:
    """As many outputs as labels; preprocessing is that of the published weights unless it is given."""
    built = zoo.source_of(name).build(name, 3).network
    torch.manual_seed(0)
    state = {k: torch.rand_like(v) / 40 if v.is_floating_point() else v for k, v in built.state_dict().items()}
    torch.save(state, "w.pt")

    model = models.load_model(name, weights="w.pt", labels=["x", "y", "z"])

    assert model.labels == ["x", "y", "z"] and model.side == 224 and model.notes == ()
    assert all(torch.equal(v, state[k]) for k, v in model.network.state_dict().items())
    assert models.load_model(name, weights="w.pt", labels=["x", "y", "z"], size=96).size == (96, 96)
    with pytest.raises(ModelUnavailable, match="w.pt does not fit the network"):
        models.load_model(name, weights="w.pt")


@pytest.mark.parametrize(
    ("name", "task"), [("lraspp_mobilenet_v3_large", "segmentation"), ("ssdlite320_mobilenet_v3_large", "detection")]
)
def test_weights_of_ones_own_where_things_are_found(name: str, task: str) -> None:
    built = zoo.source_of(name).build(name, 3).network
    for value in built.state_dict().values():
        value.copy_(torch.rand_like(value) / 40) if value.is_floating_point() else None
    torch.save(built.state_dict(), "w.pt")

    model = models.load_model(name, weights="w.pt", labels=["nothing", "fox", "owl"])

    assert (model.task, model.labels) == (task, ["nothing", "fox", "owl"])
    assert all(torch.equal(v, built.state_dict()[k]) for k, v in model.network.state_dict().items())


def test_lazy_layers_take_their_shapes() -> None:
    model = models.load_model("own_net:lazy", **SAID)

    assert len(model.labels) == 4 and not any(p.requires_grad for p in model.network.parameters())


LABELS = {
    "l.txt": "tabby\n tiger cat \r\nfox\n\n",
    "bom.txt": "\ufefftabby\ntiger cat\nfox",
    "list.json": json.dumps(["tabby", "tiger cat", "fox"]),
    "names.json": json.dumps({"0": "tabby", "2": "fox", "1": "tiger cat"}),
    "indices.json": json.dumps({"fox": 2, "tabby": 0, "tiger cat": 1}),
    "imagenet.json": json.dumps({"0": ["n0", "tabby"], "1": ["n1", "tiger cat"], "2": ["n2", "fox"]}),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_read_from_a_file(name: str, own_net: Path) -> None:
    (own_net / name).write_text(LABELS[name], encoding="utf-8")

    assert read_labels(name) == read_labels(own_net / name) == ["tabby", "tiger cat", "fox"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a\n\nb\n", "label 2 is empty"),
        (b"", "there is no label"),
        (b'{"0": "a", "2": "b"}', "there is no label of index 1"),
        (b'{"cat": "a"}', "the mapping must be of indices to names"),
        (b'["a", ', "is neither text (UTF-8) nor valid JSON"),
        (b"\xff\xfe\x00", "is neither text (UTF-8) nor valid JSON"),
    ],
)
def test_labels_that_cannot_be_read_are_told(content: bytes, sentence: str, own_net: Path) -> None:
    (own_net / "l.txt").write_bytes(content)

    with pytest.raises(ModelUnavailable) as caught:
        models.load_model("own_net:Net", labels="l.txt", **SAID)

    assert "l.txt" in str(caught.value) and sentence in str(caught.value)


def test_a_network_of_one_score_says_what_its_percentage_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = "nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)"
    (tmp_path / "binary.py").write_text(f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n")
    model = models.load_model("binary.py:make", size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert any("gives one score" in note for note in model.notes)
