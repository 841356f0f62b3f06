"""Who may name which model: a program and the owner of a host any, a visitor those that are listed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import models
from models import ModelUnavailable, zoo
from models.registered import public_name
from ui.engine import model_cache
from ui.engine.messages import Refused
from ui.serving import endpoints

CODE = """
from torch import nn
from models.model import Model, Preparation

def Net():
    conv = nn.Conv2d(3, 8, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

def whole():
    return Model("whole", Net(), ["a", "b", "c", "d"], Preparation(40, 48, (0.5,) * 3, (0.25,) * 3))

net = Net()
"""
FORBIDDEN = ("open", "import", "exec", "os.listdir", "os.scandir", "os.mkdir", "socket.connect", "socket.getaddrinfo")
SAID = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "size": 32}


@pytest.fixture(autouse=True)
def own_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module `own_net` in a working directory of its own; nothing registered or loaded."""
    for name in ("HOOKLENS_MODEL", "HOOKLENS_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOOKLENS_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(zoo, "_ADDED", {})
    monkeypatch.setattr(zoo, "_SETTINGS", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    former = dict(model_cache._loaded)
    model_cache._loaded.clear()
    (tmp_path / "own_net.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    model_cache._loaded.clear()
    model_cache._loaded.update(former)


def test_the_owner_offers_a_model_by_its_public_name(own_net: Path) -> None:
    folder = own_net / "private"
    folder.mkdir()
    (own_net / "own_net.py").rename(folder / "net.py")

    name = models.add(str(folder / "net.py:Net"), labels=["a", "b", "c", "d"], **SAID)

    assert name == "net.py:Net" and models.list_models()[0].name == name
    model = models.load_offered(name)
    assert (model.name, model.labels[0]) == (name, "a") and models.labels(name) == model.labels
    info = models.list_models()[0]
    assert (info.classes, info.side, info.cached, info.channels, info.task) == (4, 32, True, 3, "classification")
    assert str(own_net) not in repr(info)


@pytest.mark.parametrize(
    ("asked", "public"),
    [
        ("hf:/data/mine/net", "hf:net"),
        ("hf:~/net/", "hf:net"),
        ("hf:./net", "hf:net"),
        ("hf:some/vit@v2", "hf:some/vit@v2"),
        ("timm:local-dir:/data/net", "timm:net"),
        ("timm:resnet18.a1_in1k", "timm:resnet18.a1_in1k"),
        ("C:\\data\\net.py:build", "net.py:build"),
        ("../src/net.py:Net.make", "net.py:Net.make"),
        ("src.net:build", "src.net:build"),
    ],
)
def test_a_public_name_tells_no_folder(asked: str, public: str) -> None:
    assert public_name(asked) == public


@pytest.mark.parametrize("variable", ["HOOKLENS_MODEL", "HOOKLENS_MODELS"])
def test_the_owner_names_it_in_the_settings(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "own_net:whole")

    assert models.default_name() == "own_net:whole" and models.load_offered("own_net:whole").side == 40
    assert models.load_model().name == "own_net:whole"
    listed = [info.name for info in models.list_models()]
    assert listed[0] == "own_net:whole" and (len(listed) == 1) == (variable == "HOOKLENS_MODELS")
    monkeypatch.delenv(variable)
    assert "own_net:whole" not in [info.name for info in models.list_models()]


def test_the_flag_offers_it_whatever_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLENS_MODELS", "efficientnet_lite0")

    assert models.default_name("own_net:whole") == "own_net:whole"
    assert [info.name for info in models.list_models()] == ["own_net:whole", "efficientnet_lite0"]
    with pytest.raises(ModelUnavailable, match="does not offer 'own_net:net'; it offers: efficientnet_lite0"):
        models.load_model("own_net:net")


def test_weights_in_a_listed_network_have_a_name_of_their_own() -> None:
    torch.save({"a": torch.zeros(1)}, "mine.pt")

    assert models.add("resnet18", weights="mine.pt") == "resnet18+mine"
    assert models.add("resnet18", size=96) == "resnet18+own"


VISITORS = [
    "own_net:net",
    "./own_net.py:net",
    "hf:{}",
    "timm:resnet18",
    "timm:local-dir:{}",
    "hf:a/b",
    "{}/w.pt",
    "os:getpid",
]
ASK = {
    "models": models.load_offered,
    "page": lambda name: model_cache.load(name),
    "endpoint": lambda name: endpoints.list_layers(model=name),
    "methods": lambda name: endpoints.list_methods(model=name),
}


@pytest.mark.parametrize("name", VISITORS)
@pytest.mark.parametrize("way", ASK)
@pytest.mark.parametrize("offered", ["", "resnet18, own_net:whole"])
def test_a_visitor_names_listed_models_alone(
    way: str, name: str, offered: str, own_net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused as any unknown name is; nothing is imported, no file is opened or looked for."""
    if offered:
        monkeypatch.setenv("HOOKLENS_MODELS", offered)
    monkeypatch.setattr(model_cache, "ready", type("Set", (), {"wait": staticmethod(lambda seconds: True)}))
    (own_net / "own_net.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    asked = name.format(own_net)
    with pytest.raises((ModelUnavailable, Refused)) as unknown:  # the first call imports what such calls need
        ASK[way]("zzz")
    seen, watching = [], [True]
    sys.addaudithook(lambda event, args: seen.append(event) if watching else None)

    with pytest.raises((ModelUnavailable, Refused)) as caught:
        ASK[way](asked)

    watching.clear()
    assert [event for event in seen if event in FORBIDDEN] == [] and "own_net" not in sys.modules
    said, plain = str(caught.value), str(unknown.value)
    assert "There is no model" in plain and "zzz" in plain
    assert said.partition(asked)[0] == plain.partition("zzz")[0]
    assert said.rpartition(" list_models")[2] == plain.rpartition(" list_models")[2]


def test_a_visitor_gets_the_owners_model(own_net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its public name, through the same calls."""
    name = models.add("own_net:whole")
    monkeypatch.setattr(model_cache, "ready", type("Set", (), {"wait": staticmethod(lambda seconds: True)}))

    layers = endpoints.list_layers(model=name)

    assert [layer["name"] for layer in layers if layer["default"]] and model_cache.has(name)
    assert [entry["classes"] for entry in endpoints.list_models() if entry["name"] == name] == [4]
