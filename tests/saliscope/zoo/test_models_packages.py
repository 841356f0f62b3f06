"""Networks of timm, and measured transforms: preprocessing, scores, labels and errors.

Small configurations with random weights, saved to a folder and loaded back; nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saliscope import zoo as models
from saliscope.zoo import ModelUnavailable
from saliscope.zoo.sources.torchvision_networks import preparation_of, weights_by_name
from saliscope.zoo.transforms import BadTransform, measure
from tests.saliscope.zoo.test_models_hf import assert_weights, example_images, fill_cache, offline

__all__ = ["offline"]  # a fixture


@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b3"])
def test_region_of_a_transform_is_measured(name: str) -> None:
    """Oracle: the settings published by torchvision, to a third of a pixel of the input."""
    weights = weights_by_name()[name]
    own, known = measure(weights.transforms(), 3), preparation_of(name)
    assert (own.size, own.mean, own.std) == (known.size, known.mean, known.std)
    for size in ((500, 333), (333, 501), (1601, 512), (60, 41)):
        for found, expected in zip(own.region(*size), known.region(*size), strict=True):
            assert abs(found - expected) < min(size) / known.resize / 3
        width, height = own.crop(Image.new("RGB", size)).size
        assert width == height and abs(width - known.crop(Image.new("RGB", size)).width) <= 1
        bands = torch.rand(3, size[1], size[0])
        assert (own.tensor(bands) - known.tensor(bands)).abs().mean() < 0.35
    photo, unit = example_images()[0], {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    other = dataclasses.replace(dataclasses.replace(own, mean=(123.0,) * 3), **unit)
    assert other.region(500, 300) == own.region(500, 300)
    torch.testing.assert_close(other.tensor(photo), dataclasses.replace(known, **unit).tensor(photo), rtol=0, atol=1e-5)


def test_invalid_transform_is_rejected() -> None:
    for result in (torch.zeros(3, 4, 4), torch.zeros(49, 768), [1], torch.rand(1, 4, 4)):
        with pytest.raises(BadTransform, match="its preprocessing returns"):
            measure(lambda image, result=result: result, 3)


def save_with_timm(folder: Path, name: str, **keywords: Any) -> torch.nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=False, **keywords).eval()
    timm.models.save_for_hf(network, folder, safe_serialization=True)
    return network


TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "bicubic, 0.95": ("resnet18", {}),
    "bilinear, 0.875, mean 0.5": ("mobilenetv3_small_050", {"pretrained_cfg_overlay": {"mean": (0.5,) * 3}}),
    "squash": ("test_vit", {"pretrained_cfg_overlay": {"crop_mode": "squash", "crop_pct": 0.9}}),
    "border": ("test_vit", {"pretrained_cfg_overlay": {"crop_mode": "border", "crop_pct": 1.0}}),
    "not square": ("resnet18", {"pretrained_cfg_overlay": {"input_size": (3, 96, 160), "interpolation": "bilinear"}}),
}


@pytest.mark.parametrize("kind", TIMM)
def test_preprocessing_and_scores_match_timm(kind: str, tmp_path: Path) -> None:
    """Oracle: timm's own transform and network."""
    data = pytest.importorskip("timm.data")
    name, keywords = TIMM[kind]
    network = save_with_timm(tmp_path, name, **keywords)
    transform = data.create_transform(**data.resolve_model_data_config(network), is_training=False)

    model = models.load_model(f"timm:local-dir:{tmp_path}")

    for image in example_images():
        images = model.prepare(image)
        torch.testing.assert_close(images, transform(image)[None], rtol=0, atol=0)
        with torch.no_grad():
            torch.testing.assert_close(model.network(images), network(images))
    assert model.labels[281] == "tabby, tabby cat" and len(model.labels) == 1000 and model.task == "classification"
    assert model.notes == () and model.size == tuple(images.shape[2:])


def test_timm_networks_with_other_channels_and_labels(tmp_path: Path) -> None:
    names = {"label_names": ["n1", "n2", "n3"], "label_descriptions": {"n1": "fox", "n2": "owl", "n3": "elk"}}
    for channels, config, labels in ((1, None, [f"class {k}" for k in range(3)]), (5, names, ["fox", "owl", "elk"])):
        timm = pytest.importorskip("timm")
        network = timm.create_model("test_resnet", pretrained=False, in_chans=channels, num_classes=3)
        timm.models.save_for_hf(network, tmp_path, model_config=config, safe_serialization=True)
        model = models.load_model(f"timm:local-dir:{tmp_path}")
        assert model.channels == channels and model.labels == labels
        assert model.prepare(torch.rand(channels, 200, 250)).shape == (1, channels, *model.size)
        if channels == 1:
            assert model.prepare(example_images()[0]).shape == (1, 1, *model.size)
    save_with_timm(tmp_path, "test_resnet", num_classes=0)
    with pytest.raises(ModelUnavailable, match="has no classifier, so there is no class score to explain"):
        models.load_model(f"timm:local-dir:{tmp_path}")


def test_timm_name_is_loaded_from_the_cache(offline: Path) -> None:
    pytest.importorskip("timm")
    with pytest.raises(ModelUnavailable, match="timm/resnet18.a1_in1k is incomplete in the Hugging Face cache"):
        models.load_model("timm:resnet18")
    network = save_with_timm(fill_cache(offline, "timm/resnet18.a1_in1k"), "resnet18")

    for name in ("timm:resnet18", "timm:resnet18.a1_in1k", "timm:hf-hub:timm/resnet18.a1_in1k"):
        assert_weights(models.load_model(name), network.state_dict())
    assert models.load_model("timm:resnet18", size=64).size == (64, 64)


def test_custom_weights_in_a_timm_network(tmp_path: Path) -> None:
    state = save_with_timm(tmp_path, "test_resnet", num_classes=3).state_dict()
    torch.save(state, tmp_path / "w.pt")
    model = models.load_model("timm:test_resnet", weights=tmp_path / "w.pt", labels=["a", "b", "c"])
    assert_weights(model, state)
    with pytest.raises(ModelUnavailable, match=r"fc.weight: \[3, \d+\] in the file, \[1000, \d+\] in the network"):
        models.load_model("timm:test_resnet", weights=tmp_path / "w.pt")


def test_unknown_timm_names_are_reported() -> None:
    pytest.importorskip("timm")
    for name, message in (
        ("timm:resnet18x", "Unknown timm model 'resnet18x'. Did you mean 'timm:resnet18'"),
        ("timm:resnet18.none", "Unknown weights 'none' of resnet18. Available: a1_in1k"),
        ("timm:local-dir:/none/here", "/none/here has no config.json"),
        ("timm:hf-hub:some/where", "some/where is incomplete in the Hugging Face cache"),
    ):
        with pytest.raises(ModelUnavailable, match=message):
            models.load_model(name)
