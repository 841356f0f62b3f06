"""Access to models: programs and the owner of a host can load any model, visitors only listed ones."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from saliscope import resources
from saliscope import zoo as models
from saliscope.compute import model_cache
from saliscope.errors import Refused
from saliscope.zoo import ModelUnavailable
from saliscope.zoo.registered import public_name
from tests.saliscope.zoo.test_models_own import SETTINGS, own_net

__all__ = ["own_net"]  # a fixture
FORBIDDEN = ("open", "import", "exec", "os.listdir", "os.scandir", "os.mkdir", "socket.connect", "socket.getaddrinfo")
NAMED = {"labels": ["a", "b", "c", "d"], **SETTINGS}


@pytest.fixture(autouse=True)
def loaded(own_net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the loaded models."""
    monkeypatch.setattr(model_cache, "loaded_models", OrderedDict())


def test_owner_offers_a_model_by_its_public_name(own_net: Path) -> None:
    (own_net / "private").mkdir()
    file = (own_net / "own_net.py").rename(own_net / "private" / "net.py")
    name = models.add(f"{file}:Net", **NAMED)
    model, info = models.load_offered(name), models.list_models()[0]
    assert name == info.name == model.name == "net.py:Net" and models.labels(name) == model.labels == NAMED["labels"]
    assert (info.classes, info.side, info.cached, info.channels, info.task) == (4, 32, True, 3, "classification")
    assert str(own_net) not in repr(info)
    for given, public in (
        ("hf:/data/mine/net", "hf:net"),
        ("hf:some/vit@v2", "hf:some/vit@v2"),
        ("timm:local-dir:/data/net", "timm:net"),
        ("C:\\data\\net.py:build", "net.py:build"),
        ("../src/net.py:Net.make", "net.py:Net.make"),
        ("src.net:build", "src.net:build"),
    ):
        assert public_name(given) == public


def test_owner_offers_models_with_variables_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SALISCOPE_MODEL", "SALISCOPE_MODELS"):
        monkeypatch.setenv(variable, "own_net:whole")
        assert models.default_name("auto") == models.default_name() == "own_net:whole", "auto is no option"
        assert models.load_offered("own_net:whole").side == 40
        assert models.load_model().name == "own_net:whole"
        listed = [info.name for info in models.list_models()]
        assert listed[0] == "own_net:whole" and (len(listed) == 1) == (variable == "SALISCOPE_MODELS")
        monkeypatch.delenv(variable)
    assert "own_net:whole" not in [info.name for info in models.list_models()]

    monkeypatch.setenv("SALISCOPE_MODELS", "efficientnet_lite0")
    assert models.default_name("own_net:whole") == "own_net:whole", "the option overrides the variable"
    assert [info.name for info in models.list_models()] == ["own_net:whole", "efficientnet_lite0"]
    with pytest.raises(ModelUnavailable, match="'own_net:net' is not offered by this host. Available: efficientnet_li"):
        models.load_model("own_net:net")
    monkeypatch.delenv("SALISCOPE_MODELS")
    torch.save({"a": torch.zeros(1)}, "mine.pt")
    assert models.add("resnet18", weights="mine.pt") == "resnet18+mine", "other weights have their own name"
    assert models.add("resnet18", size=96) == "resnet18+own"


VISITORS = "own_net:net ./own_net.py:net hf:{} timm:resnet18 timm:local-dir:{} hf:a/b {}/w.pt os:getpid".split()
CALLS = ("models", "page", "endpoint", "methods")


def call(kind: str, name: str) -> object:
    """Load a model as a visitor does."""
    from saliscope.page.serving import endpoints  # imports Gradio

    functions = (models.load_offered, model_cache.load, endpoints.list_layers, endpoints.list_methods)
    return functions[CALLS.index(kind)](name)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("offered", ["", "resnet18, own_net:whole"])
def test_visitor_can_only_load_listed_models(
    kind: str, offered: str, own_net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of an unknown name; nothing is imported and no file is accessed."""
    if offered:
        monkeypatch.setenv("SALISCOPE_MODELS", offered)
    monkeypatch.setattr(model_cache, "ready", type("Set", (), {"wait": staticmethod(lambda seconds: True)}))
    (own_net / "own_net.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    with pytest.raises((ModelUnavailable, Refused), match="Unknown model.*zzz") as unknown:
        call(kind, "zzz")  # the first call imports what such calls need
    plain = str(unknown.value)
    listing = ("os.scandir", str(resources.networks()))  # the list of models includes the files in this folder
    seen: list[tuple[object, ...]] = []
    watching = [True]
    sys.addaudithook(lambda event, args: seen.append((event, *args)) if watching and event in FORBIDDEN else None)
    for name in VISITORS:
        requested = name.format(own_net)
        with pytest.raises((ModelUnavailable, Refused)) as caught:
            call(kind, requested)
        assert [each for each in seen if (each[0], str(each[1])) != listing] == [], requested
        message = str(caught.value)
        assert message.partition(requested)[0] == plain.partition("zzz")[0]
        rest, expected = (re.split(" Run `saliscope| Choose one", text)[-1] for text in (message, plain))
        assert rest == expected != plain
    watching.clear()
    assert "own_net" not in sys.modules


def test_settings_after_a_name_share_the_network() -> None:
    """The page's way to change what was assumed; equal to loading the model with these settings."""
    name = models.add("own_net:Net", **NAMED)
    base, other = (model_cache.load(f"{name}{more}") for more in ("", "?size=20x24&mean=0.1,0.2,0.3&score=sigmoid"))
    assert other.model.network is base.model.network and other.model.labels == base.model.labels
    assert other.model.size == (20, 24) and other.model.preparation.mean == (0.1, 0.2, 0.3)
    assert other.model.preparation.std == base.model.preparation.std
    assert (other.score, base.score, base.model.size) == ("sigmoid", "softmax", (32, 32))
    assert other.layers[0].grid == (20, 24)
    assert other.title == "own_net:Net (size 20x24, mean 0.1,0.2,0.3, score sigmoid)"
    whole, moved = (model_cache.load(f"{name}?crop={crop}").model for crop in ("whole", "0.25,1"))
    assert whole.preparation.position is None and moved.preparation.position == (0.25, 1.0)
    alone = models.load_model(f"{name}?size=20x24")
    assert alone.size == (20, 24) and alone.name == f"{name}?size=20x24"


def test_wrong_settings_after_a_name_are_refused() -> None:
    name = models.add("own_net:Net", **NAMED)
    for settings, message in (
        ("size=0", "Invalid size '0'"),
        ("size=4000", "Use pixels from 1 to 512"),
        ("size=8&size=9", "Cannot read the setting 'size=9'"),
        ("mean=a", "Invalid mean 'a'"),
        ("mean=1,2", r"Invalid mean \(1.0, 2.0\)"),
        ("std=0", "a positive std"),
        ("crop=0.5", "Invalid crop '0.5'. Use whole, or its position"),
        ("crop=0.5,1.5", "Invalid crop '0.5,1.5'"),
        ("score=x", "score='x'"),
        ("score=identity", "range from"),
        ("size=8&weights=/etc/passwd", "Cannot read the setting 'weights=/etc/passwd'"),
    ):
        with pytest.raises(ModelUnavailable, match=message):
            model_cache.load(f"{name}?{settings}")
        with pytest.raises(ModelUnavailable, match="Unknown model"):
            model_cache.load(f"own_net:whole?{settings}")
