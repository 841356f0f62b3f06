"""torchvision's segmentation networks and detectors: the list, the preprocessing, the network and its class names.

For their use on the page and in the API, see tests/saliscope/compute/test_dense_answers.py.
"""

from __future__ import annotations

import pytest
import torch
import torchvision
from PIL import Image
from torchvision.models import get_model, get_model_weights

from saliscope import zoo
from saliscope.zoo.sources.torchvision_networks import preparation_of
from tests.saliscope.zoo.test_models import any_checksum, cache_random_weights, checkpoints

SEGMENTATION = torchvision.models.list_models(module=torchvision.models.segmentation)


pytestmark = pytest.mark.usefixtures("any_checksum", "checkpoints")
__all__ = ["any_checksum", "checkpoints"]  # fixtures


def random_image(width: int, height: int) -> Image.Image:
    values = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))
    return torchvision.transforms.functional.to_pil_image(values)


def test_segmentation_preprocessing_matches_the_weights_transforms() -> None:
    preparation = preparation_of("lraspp_mobilenet_v3_large")
    transform = get_model_weights("lraspp_mobilenet_v3_large").DEFAULT.transforms()
    for width, height in ((90, 70), (70, 110), (64, 64)):
        image = random_image(width, height)
        torch.testing.assert_close(preparation.tensor(image), transform(image)[None], rtol=0, atol=1e-6)
        assert preparation.crop(image).size == image.size and preparation.region(width, height)[2:] == (width, height)


@pytest.mark.parametrize("name", ["retinanet_resnet50_fpn_v2", "ssd300_vgg16", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_detector_inputs_already_have_the_detectors_size(name: str) -> None:
    """Oracle: the network's own transform, which then neither resizes nor pads, unless it makes a square."""
    with torch.device("meta"):
        own = get_model(name, weights=None, weights_backbone=None).transform
    preparation = preparation_of(name)
    short = own.fixed_size[0] if own.fixed_size else min(own.min_size)
    if preparation.longest:
        assert 0 <= own.max_size - preparation.longest < own.size_divisible
        own.max_size = preparation.longest

    assert preparation.size == (short, short)
    for width, height in ((3, 3), (4, 3), (3, 4), (16, 9), (9, 16), (39, 10)):
        images = preparation.tensor(random_image(10 * width, 10 * height))
        seen, _ = own([*images])
        if own.fixed_size:
            assert min(images.shape[-2:]) == short
        else:
            assert seen.tensors.shape == images.shape and seen.image_sizes == [tuple(images.shape[-2:])]
            assert images.shape[-1] / images.shape[-2] == pytest.approx(width / height, rel=0.1)
    exact = random_image(short, short)
    torch.testing.assert_close(preparation.tensor(exact), torchvision.transforms.functional.to_tensor(exact)[None])


@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large"])
def test_loaded_network_matches_torchvision(name: str) -> None:
    with pytest.raises(zoo.ModelUnavailable, match="LR-ASPP" if name in SEGMENTATION else "SSDlite"):
        zoo.load_model(name)
    network = cache_random_weights(name, weights_backbone=None, num_classes=len(zoo.labels(name)))

    model = zoo.load_model(name)
    images = model.prepare(random_image(80, 60))
    actual, expected = model.network(images), network(images if model.task == "segmentation" else [*images])

    assert model.task == ("segmentation" if name in SEGMENTATION else "detection")
    assert model.labels[0] == "__background__" and len(model.labels) == len(zoo.labels(name))
    assert not any(parameter.requires_grad for parameter in model.network.parameters())
    if model.task == "detection":
        assert actual[0].keys() == {"boxes", "labels", "scores"}
        actual, expected = actual[0], expected[0]
    for key in expected:
        torch.testing.assert_close(actual[key], expected[key])
