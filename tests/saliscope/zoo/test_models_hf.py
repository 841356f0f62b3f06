"""Image classifiers of Hugging Face: the preprocessing of the processor, scores, labels and errors.

Small configurations with random weights, saved by `save_pretrained` and loaded back; nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saliscope import zoo as models
from saliscope.zoo import ModelUnavailable
from saliscope.zoo.sources import hub
from tests.support.catalog import isolate_catalog

T: Any = None
"""The package transformers, which takes seconds to import."""
EXAMPLES = Path(__file__).parents[3] / "assets" / "examples"
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
NAMES = {0: "fox", 1: "owl", 2: "elk", 3: "emu"}


@cache
def example_images() -> list[Image.Image]:
    """Return two of the examples, one of them also rotated."""
    found = [Image.open(path).convert("RGB") for path in sorted(EXAMPLES.iterdir())[:2]]
    return [*found, found[0].transpose(Image.Transpose.ROTATE_90)]


@pytest.fixture(autouse=True, scope="module")
def transformers() -> None:
    global T
    T = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, no registered models, and no network; return the cache of the Hub."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def vit(**changes: Any) -> Any:
    config = T.ViTConfig(**{"image_size": 64, "patch_size": 16, "id2label": NAMES, **SMALL, **changes})
    return T.ViTForImageClassification(config)


def resnet() -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4}
    return T.ResNetForImageClassification(T.ResNetConfig(id2label=NAMES, **sizes))


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


KINDS: dict[str, tuple[Any, Any]] = {
    "resized": (vit, lambda: T.ViTImageProcessor(size=square(64))),
    "not rescaled": (
        vit,
        lambda: T.ViTImageProcessor(size=square(64), do_rescale=False, image_mean=[99] * 3, image_std=[50, 51, 52]),
    ),
    "cropped, bicubic": (vit, lambda: T.CLIPImageProcessor(size={"shortest_edge": 72}, crop_size=square(64))),
    "crop fraction": (resnet, lambda: T.ConvNextImageProcessor(size={"shortest_edge": 96}, crop_pct=0.875)),
    "channels flipped": (vit, lambda: T.MobileViTImageProcessor(size={"shortest_edge": 72}, crop_size=square(64))),
    "nearest, top of the range": (vit, lambda: T.EfficientNetImageProcessor(size=square(64))),
    "LeViT": (resnet, lambda: T.LevitImageProcessor(size={"shortest_edge": 64}, crop_size=square(64))),
}


def save(folder: Path, network: Any, processor: Any = None) -> Any:
    torch.manual_seed(0)
    network.eval().save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return network


@pytest.mark.parametrize("kind", KINDS)
def test_preprocessing_and_scores_match_the_package(kind: str, tmp_path: Path) -> None:
    """Oracle: the processor and the network as loaded by transformers."""
    build, processor = KINDS[kind]
    network = save(tmp_path / "net", build(), processor())
    own = T.AutoImageProcessor.from_pretrained(tmp_path / "net")

    model = models.load_model(f"hf:{tmp_path / 'net'}")

    for image in example_images():
        images = model.prepare(image)
        torch.testing.assert_close(images, own(images=image, return_tensors="pt")["pixel_values"], rtol=0, atol=0)
        with torch.no_grad():
            torch.testing.assert_close(model.network(images).logits, network(images).logits)
    assert model.labels == [*NAMES.values()] and model.task == "classification" and model.notes == ()
    assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
    left, top, right, bottom = model.preparation.region(800, 600)
    cropped = {"resized", "not rescaled", "nearest, top of the range"}
    assert ((left, top, right, bottom) == (0, 0, 800, 600)) == (kind in cropped)


def assert_weights(model: models.Model, state: dict[str, torch.Tensor]) -> None:
    found = model.network.state_dict()
    assert found.keys() == state.keys() and all(torch.equal(value, state[name]) for name, value in found.items())


def test_networks_with_other_channels_weights_and_settings(tmp_path: Path) -> None:
    for channels in (1, 5):
        means = {"image_mean": [0.4] * channels, "image_std": [0.2] * channels}
        save(tmp_path / "net", vit(num_channels=channels), T.ViTImageProcessor(size=square(64), **means))
        model = models.load_model(f"hf:{tmp_path / 'net'}")
        assert model.channels == channels and model.preparation.mean == (0.4,) * channels
        assert model.prepare(torch.rand(channels, 90, 80)).shape == (1, channels, 64, 64)
    bare, half = f"hf:{tmp_path / 'bare'}", [0.5] * 3
    save(tmp_path / "bare", resnet())
    with pytest.warns(UserWarning, match="The preprocessing of .* is unknown"):
        assert models.load_model(bare, size=64).size == (64, 64)
    assert models.load_model(bare, size=64, mean=half, std=half).notes == ()
    save(tmp_path / "net", vit(), T.ViTImageProcessor(size=square(64)))
    other = vit(id2label={0: "a", 1: "b"}).state_dict()
    torch.save(other, tmp_path / "w.pt")
    own = {"weights": tmp_path / "w.pt", "labels": ["a", "b"], "mean": [0.3] * 3}
    model = models.load_model(f"hf:{tmp_path / 'net'}", **own)
    assert model.labels == ["a", "b"] and model.preparation.mean == (0.3,) * 3
    assert_weights(model, other)


def fill_cache(hub: Path, repository: str) -> Path:
    """Return the folder of a repository in the cache of the Hub, whose files are to be written."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0", encoding="utf-8")
    return folder / "snapshots" / "0"


def test_a_name_of_the_hub_loads_from_the_cache(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is made, whether or not it is allowed."""
    network = save(fill_cache(offline, "some/vit"), vit(), T.ViTImageProcessor(size=square(64)))
    for place, name in ((socket.socket, "connect"), (socket, "getaddrinfo")):
        monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("a connection was made"))
    for allowed in ("1", "0"):
        monkeypatch.setenv("SALISCOPE_OFFLINE", allowed)
        model = models.load_model("hf:some/vit")
        assert model.name == "hf:some/vit" and model.labels == [*NAMES.values()]
        assert_weights(model, network.state_dict())


def test_a_model_of_the_hub_is_marked_as_offline_until_it_is_cached(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only Hugging Face's own variable forbids downloads. torchvision's models are not on its Hub."""
    pytest.importorskip("timm")
    monkeypatch.setenv("SALISCOPE_MODELS", "hf:some/vit,timm:resnet18,resnet18")

    def marked() -> set[str]:
        return {info.name for info in models.list_models() if info.offline}

    assert marked() == {"hf:some/vit", "timm:resnet18", "resnet18"}
    monkeypatch.setenv("SALISCOPE_OFFLINE", "")
    for forbidden, expected in ((True, {"hf:some/vit", "timm:resnet18"}), (False, set())):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", forbidden)
        assert marked() == expected
    save(fill_cache(offline, "some/vit"), vit())
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    assert marked() == {"timm:resnet18", "resnet18"}


def test_weights_of_the_hub_are_compared_with_their_sha256(offline: Path) -> None:
    """The Hub names a file by its SHA-256. A copy without this name is used with a note."""
    folder = fill_cache(offline, "some/vit")
    save(folder, vit(), T.ViTImageProcessor(size=square(64)))
    file = folder / "model.safetensors"
    with pytest.warns(UserWarning, match="not verified"):
        assert len(models.load_model("hf:some/vit").notes) == 1

    data = bytearray(file.read_bytes())
    blob = folder.parents[1] / "blobs" / hashlib.sha256(data).hexdigest()
    blob.parent.mkdir()
    file.rename(blob)
    file.symlink_to(blob)
    assert models.load_model("hf:some/vit").notes == ()
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(ModelUnavailable, match=r"Hash mismatch: model\.safetensors is damaged\. Delete "):
        models.load_model("hf:some/vit")


def test_a_missing_model_of_the_hub_and_a_missing_package_are_reported(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelUnavailable, match=r"some/where is incomplete .*SALISCOPE_OFFLINE.*\(hf download some/wh"):
        models.load_model("hf:some/where")

    def unreachable(*_: object, **__: object) -> None:
        raise socket.gaierror("no such host")

    monkeypatch.setenv("SALISCOPE_OFFLINE", "0")
    monkeypatch.setattr(hub.urllib.request, "urlopen", unreachable)
    with pytest.raises(ModelUnavailable, match="some/where is not in .* and the Hub cannot be reached"):
        models.load_model("hf:some/where")
    for package, name in (("transformers", "hf:some/vit"), ("timm", "timm:resnet18")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ModelUnavailable, match=f"package {package} is not installed. Install it with: pip install"):
            models.load_model(name)


def test_unsuitable_folders_are_reported(tmp_path: Path) -> None:
    """transformers would initialize missing weights randomly."""

    def refused(message: str, folder: Path = tmp_path / "net") -> None:
        with pytest.raises(ModelUnavailable, match=message):
            models.load_model(f"hf:{folder}")

    T.BertModel(T.BertConfig(vocab_size=9, **SMALL)).save_pretrained(tmp_path / "bert")
    refused("has the model type 'bert', for which transformers has no image", tmp_path / "bert")
    refused("Folder not found: /none/here", Path("/none/here"))
    (tmp_path / "empty").mkdir()
    refused("has no config.json", tmp_path / "empty")
    save(tmp_path / "backbone", vit().vit, T.ViTImageProcessor(size=square(64)))
    refused(r"are incomplete: missing \(2\): classifier", tmp_path / "backbone")

    save(tmp_path / "net", vit(), T.ViTImageProcessor(size=square(64)))
    file, weights = tmp_path / "net" / "config.json", tmp_path / "net" / "model.safetensors"
    config = json.loads(file.read_text(encoding="utf-8"))
    for changed in ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}, {"hidden_size": 48}):
        file.write_text(json.dumps(config | changed), encoding="utf-8")
        refused("net")
    file.write_text(json.dumps(config), encoding="utf-8")
    weights.write_bytes(weights.read_bytes()[:1000])
    refused("Cannot load ")

    class Runs:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    weights.unlink()
    torch.save({"classifier.weight": Runs()}, tmp_path / "net" / "pytorch_model.bin")
    refused("Cannot load")
    assert not (tmp_path / "ran").exists(), "code in a pickle"


def test_code_of_the_hub_is_never_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    imports = "from transformers import ViTConfig as Own, ViTForImageClassification as Net"
    code = f"open({str(ran)!r}, 'w').close()\n{imports}\n"
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    save(tmp_path, vit(), T.ViTImageProcessor(size=square(64)))
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForImageClassification": "own.Net"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    with pytest.raises(ModelUnavailable, match="Code that comes with weights is never run"):
        models.load_model(f"hf:{tmp_path}")
    # A known model type with custom code is loaded without that code.
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "vit"}), encoding="utf-8")
    assert type(models.load_model(f"hf:{tmp_path}").network) is T.ViTForImageClassification
    assert not ran.exists()
