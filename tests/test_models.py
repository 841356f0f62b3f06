"""The model zoo: names, preprocessing, crop and class names, the default, loading without random initialisation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from torchvision.models import get_model, get_model_weights

import explainers
import models
from models import Model, ModelUnavailable, Preparation, downloads
from models.sources import efficientnet_lite
from models.sources.torchvision_classifiers import preparation_of, weights_by_name
from models.sources.torchvision_titles import title_of

ASSETS = Path(__file__).parents[1] / "assets"
EXAMPLES = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))
NAMES = torchvision.models.list_models(module=torchvision.models)


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no network."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HOOKLENS_OFFLINE", "1")
    monkeypatch.delenv("HOOKLENS_MODEL", raising=False)
    monkeypatch.delenv("HOOKLENS_MODELS", raising=False)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept any checksum in the cache, as no published weights are at hand."""
    monkeypatch.setattr(downloads, "digest_of", lambda url: "")


@cache
def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth colour gradient with noise; every region is different."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (
        torch.linspace(0, 1, width)[None].expand(height, width),
        torch.linspace(0, 1, height)[:, None].expand(height, width),
    )
    noise = torch.rand(3, height, width, generator=generator) * 0.2
    values = (torch.stack([x, y, (x * 9 + y * 5).sin() / 2 + 0.5]) * 0.8 + noise) * 255
    return torchvision.transforms.functional.to_pil_image(values.byte())


def cache_random_weights(name: str, checkpoints: Path) -> torch.nn.Module:
    """Save random weights of that network in the cache, under the published name; return the network."""
    torch.manual_seed(0)
    extra = {"init_weights": False, "aux_logits": True} if name in ("googlenet", "inception_v3") else {}
    network = get_model(name, weights=None, **extra)
    torch.save(network.state_dict(), downloads.path_of(get_model_weights(name).DEFAULT.url))
    return network.eval()


def test_every_classifier_of_torchvision_is_listed() -> None:
    """80 names in torchvision 0.29; each with its default weights under the bare name; the one on board is first."""
    found = [info.name for info in models.list_models() if info.task == "classification"]

    assert found[0] == "efficientnet_lite0" and len(found) == len(set(found))
    assert set(NAMES) <= set(found) and len(NAMES) >= 80
    assert {name.partition(":")[0] for name in found[1:]} == set(NAMES)
    assert "vgg16:IMAGENET1K_FEATURES" not in found, "the backbone of a detector, no classifier"


def test_the_list_holds_the_metadata_of_the_weights() -> None:
    by_name = {info.name: info for info in models.list_models()}

    v1, v2 = by_name["resnet50:IMAGENET1K_V1"], by_name["resnet50"]

    assert (v1.weights, v2.weights) == ("IMAGENET1K_V1", "IMAGENET1K_V2")
    assert (v2.title, v1.title) == ("ResNet-50", "ResNet-50 (V1)")
    assert (v2.classes, v2.side, v2.megabytes, v2.accuracy, v2.cached) == (1000, 224, 102.5, 80.858, False)
    assert by_name["efficientnet_b7"].side == 600


def test_every_name_has_a_title() -> None:
    titles = {name: title_of(name) for name in NAMES}

    assert not [name for name, title in titles.items() if title == name or "{" in title]
    assert len(set(titles.values())) == len(titles)


@pytest.mark.parametrize(("width", "height"), [(500, 333), (333, 501), (60, 41)])
def test_prepare_equals_the_weights_own_transforms(width: int, height: int) -> None:
    """Oracle: torchvision's `transforms()` of every set of weights, each setting once."""
    picture, seen = photo(width, height), set()
    for weights in weights_by_name().values():
        preparation = preparation_of(weights)
        if preparation.side > 300 or preparation in seen:
            continue
        seen.add(preparation)

        actual = preparation.tensor(picture)

        torch.testing.assert_close(actual, weights.transforms()(picture)[None], rtol=0, atol=1e-6)
        assert actual.shape == (1, 3, preparation.side, preparation.side) and actual.dtype == torch.float32
    assert len(seen) > 10


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_prepare_takes_any_mode(mode: str) -> None:
    assert models.load_model("efficientnet_lite0").prepare(photo(80, 70).convert(mode)).shape == (1, 3, 224, 224)


@pytest.mark.parametrize(("side", "resize"), [(224, 256), (224, 232), (64, 64), (299, 342), (384, 384)])
@pytest.mark.parametrize(("width", "height"), [(640, 427), (427, 640), (300, 300), (1601, 512), (50, 37)])
def test_crop_is_what_the_network_sees(side: int, resize: int, width: int, height: int) -> None:
    """Oracle: an image whose red and green are its coordinates; crop and tensor must show the same ones everywhere."""
    x, y = torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")
    values = torch.stack([x / width * 255, y / height * 255, x * 0]).round().byte()
    picture = torchvision.transforms.functional.to_pil_image(values)
    preparation = Preparation(side, resize, (0.0,) * 3, (1.0,) * 3)

    crop = preparation.crop(picture)

    own = side * min(width, height) / resize
    assert crop.mode == "RGB" and crop.size == (round(own), round(own)), "the picture's own resolution"
    shown = torchvision.transforms.functional.pil_to_tensor(crop).float()[None] / 255
    shown = torch.nn.functional.interpolate(shown, (side, side), mode="bilinear", antialias=True, align_corners=False)
    # Half a pixel of the smaller image, plus the rounding to 8 bits.
    allowed = 0.75 / min(own, side) * own / min(width, height) + 2 / 255
    inner = slice(2, -2)
    assert (shown - preparation.tensor(picture))[..., inner, inner].abs().max() < allowed


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_an_input_has_as_many_channels_as_the_network(channels: int) -> None:
    """Oracle: torchvision's own steps, band by band; a photograph fits one or three channels alone."""
    mean, std = tuple(0.1 * k for k in range(channels)), tuple(1.0 + k for k in range(channels))
    preparation = Preparation(16, 20, mean, std)
    bands = torch.rand(channels, 30, 50)

    actual = preparation.tensor(bands)

    resized = torchvision.transforms.functional.resize(bands, [20], antialias=True)
    each = torchvision.transforms.functional.center_crop(resized, [16])
    expected = torch.stack([(each[k] - mean[k]) / std[k] for k in range(channels)])[None]
    torch.testing.assert_close(actual, expected)
    assert preparation.channels == channels and Model("m", torch.nn.Identity(), [], preparation).channels == channels
    if channels == 1:
        grey = preparation.tensor(photo(50, 30))
        torch.testing.assert_close(grey, preparation.tensor(photo(50, 30).convert("L")))
    else:
        with pytest.raises(ValueError, match=f"takes {channels} channels: give a float tensor"):
            preparation.tensor(photo(50, 30))
    for kind in (torch.uint8, torch.uint16, torch.int16):
        whole = (bands * torch.iinfo(kind).max).round().to(kind)
        raw = Preparation(16, 20, (100.0,) * channels, std)
        assert raw.raw and (preparation.raw == (channels > 1)) and not torch.is_floating_point(whole)
        unit = Preparation(16, 20, (0.0,) * channels, (1.0,) * channels)
        torch.testing.assert_close(unit.tensor(whole.numpy()), unit.tensor(bands), atol=0.003, rtol=0)
        torch.testing.assert_close(raw.tensor(whole), raw.tensor(whole.float()))
    whole = (bands * 255).byte().numpy()
    for array in (whole.astype(">u2"), whole.astype("<f8"), whole[:, ::-1, ::-1][:, ::-1, ::-1]):
        array.flags.writeable = False
        torch.testing.assert_close(raw.tensor(array), raw.tensor(torch.from_numpy(whole).float()))
    with pytest.raises(ValueError, match="str is no picture: give one of PIL"):
        preparation.tensor("photo.tif")
    for wrong in (bands[:, 0], torch.rand(channels + 1, 30, 50), (bands * 255).long()):
        with pytest.raises(ValueError, match=f"takes {channels} channels: give floats"):
            preparation.tensor(wrong)


@pytest.mark.parametrize("size", [(48, 80), (80, 48)])
@pytest.mark.parametrize("resize", [90, (60, 100), (48, 80)])
def test_an_input_need_not_be_square(size: tuple[int, int], resize: int | tuple[int, int]) -> None:
    """Oracle: coordinates as colours, as above; an input larger than the resized picture has a black margin."""
    x, y = torch.meshgrid(torch.linspace(0.2, 1, 300), torch.linspace(0.2, 1, 200), indexing="xy")
    picture = torchvision.transforms.functional.to_pil_image((torch.stack([x, y, x * 0]) * 255).round().byte())
    preparation = Preparation(size, resize, (0.0,) * 3, (1.0,) * 3)

    tensor, crop = preparation.tensor(picture), preparation.crop(picture)

    assert tensor.shape == (1, 3, *size) and preparation.size == size
    shown = torchvision.transforms.functional.pil_to_tensor(crop).float()[None] / 255
    shown = torch.nn.functional.interpolate(shown, size, mode="bilinear", antialias=True, align_corners=False)
    inner = (tensor[0, 0] > 0) & (shown[0, 0] > 0.15)
    inner &= torch.nn.functional.avg_pool2d(inner[None].float(), 5, 1, 2)[0] == 1
    assert inner.float().mean() > 0.4 and (shown - tensor)[..., inner].abs().max() < 0.02


def test_crop_has_the_resolution_of_the_photograph() -> None:
    """A crop at integer pixels is not resampled: 224/256 of 512 pixels are 448."""
    picture = photo(1024, 512)

    crop = models.load_model().crop(picture)

    assert crop.size == (448, 448)
    assert crop.tobytes() == picture.crop((288, 32, 736, 480)).tobytes(), "no resampling"


def test_an_elongated_image_is_cropped_before_resizing() -> None:
    """torchvision would resize 20,000 x 1 pixels to 5,120,000 x 256, four gigabytes; ours crops the centre first."""
    model = models.load_model()
    for size in ((20_000, 1), (1, 20_000)):
        assert model.prepare(Image.new("RGB", size)).shape == (1, 3, 224, 224)
        assert model.crop(Image.new("RGB", size)).size == (1, 1)


def test_the_model_on_board_is_in_evaluation_mode_and_frozen() -> None:
    model = models.load_model()

    assert isinstance(model, Model) and (model.name, model.side) == ("efficientnet_lite0", 224)
    assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}
    assert model.labels == models.labels("efficientnet_lite0")
    with torch.inference_mode():
        assert model.network(model.prepare(photo(90, 80))).shape == (1, 1000)


def predictions() -> dict[str, tuple[list[str], float]]:
    """The top five classes and the top probability, by example."""
    model, found = models.load_model(), {}
    for example in EXAMPLES:
        with torch.inference_mode():
            probabilities = model.network(model.prepare(Image.open(ASSETS / example["file"]))).softmax(1)[0]
        top = [model.labels[index] for index in probabilities.topk(5).indices.tolist()]
        found[example["id"]] = (top, float(probabilities.max()))
    return found


def test_the_model_on_board_classifies_the_examples() -> None:
    """Top-1 is right for at least six of the nine; for the first, which the page opens with, at more than 80%."""
    found = predictions()

    right = [example["id"] for example in EXAMPLES if found[example["id"]][0][0] in example["names"]]

    assert len(EXAMPLES) == 9 and len(right) >= 6, found
    (first, *_), probability = found[EXAMPLES[0]["id"]]
    assert first in EXAMPLES[0]["names"] and probability > 0.8, found


def test_each_class_of_the_montage_has_its_own_half() -> None:
    """Both are in the top five, and Grad-CAM of either lies in its half."""
    pair = next(example for example in EXAMPLES if example["id"] == "pair")
    assert "montage" in pair["title"].lower() and "Montage" in pair["alt"]
    assert set(pair["names"]) <= set(predictions()["pair"][0])
    model = models.load_model()
    x = model.prepare(Image.open(ASSETS / pair["file"]))

    for name, left in zip(pair["names"], (True, False), strict=True):
        found = explainers.explain("grad_cam", model.network, x, target=model.labels.index(name)).map[0].clamp(min=0)
        # The middle column belongs to both halves.
        own, other = (found[:, :3], found[:, 4:]) if left else (found[:, 4:], found[:, :3])
        assert own.sum() > 3 * other.sum() and own.max() == found.max(), name


def test_the_examples_are_small_credited_and_described() -> None:
    licences = (ASSETS / "LICENSES.md").read_text(encoding="utf-8")
    labels = set(models.labels())
    assert len(EXAMPLES) >= 6
    assert {example["file"] for example in EXAMPLES} == {
        f"examples/{path.name}" for path in (ASSETS / "examples").iterdir()
    }
    for example in EXAMPLES:
        path = ASSETS / example["file"]
        assert path.stat().st_size <= 150_000 and max(Image.open(path).size) <= 800
        assert f"`{example['file']}`" in licences and len(example["alt"]) > 20 and set(example["names"]) <= labels


@pytest.mark.parametrize("name", ["squeezenet1_1", "mnasnet0_5", "shufflenet_v2_x0_5", "googlenet"])
def test_loading_gives_the_weights_and_draws_no_random_numbers(
    name: str, checkpoints: Path, any_checksum: None
) -> None:
    """Oracle: the network whose weights were saved. No random number is drawn: the generator state is unchanged."""
    expected = cache_random_weights(name, checkpoints)
    torch.manual_seed(1)
    before = torch.get_rng_state()

    model = models.load_model(name)

    assert torch.equal(torch.get_rng_state(), before)
    assert model.labels == get_model_weights(name).DEFAULT.meta["categories"] and model.name == name
    x = model.prepare(photo(300, 260))
    with torch.inference_mode():
        # GoogLeNet's published weights take the input normalisation of the first implementation.
        torch.testing.assert_close(
            model.network(x), expected(_normalised_for_googlenet(x) if name == "googlenet" else x)
        )


def _normalised_for_googlenet(x: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x * std[:, None, None] + mean[:, None, None] - 0.5) / 0.5


def test_offline_the_error_names_what_is_ready(checkpoints: Path, any_checksum: None) -> None:
    cache_random_weights("squeezenet1_1", checkpoints)

    with pytest.raises(ModelUnavailable) as caught:
        models.load_model("resnet18")

    assert str(caught.value) == (
        "ResNet-18 is not on this machine, and HOOKLENS_OFFLINE forbids downloading it; "
        "ready at once: efficientnet_lite0, squeezenet1_1."
    )


@pytest.mark.parametrize("ask", [models.load_model, models.labels])
def test_an_unknown_name_is_refused_with_the_nearest(ask: object) -> None:
    with pytest.raises(ModelUnavailable, match="There is no model 'resnet5O': did you mean 'resnet50'"):
        ask("resnet5O")  # type: ignore[operator]


def test_labels_are_known_without_loading() -> None:
    assert models.labels("resnet50")[281] == "tabby" and models.labels() == models.labels("efficientnet_lite0")


def test_the_default_weights_may_be_spelled_out() -> None:
    assert models.labels("resnet50:IMAGENET1K_V2") == models.labels("resnet50")


def test_auto_is_the_model_on_board(any_checksum: None) -> None:
    """A cached ResNet-50 changes nothing."""
    complete_file(weights_by_name()["resnet50"].url)

    assert models.default_name() == models.first_ready() == "efficientnet_lite0"
    assert models.load_model().name == "efficientnet_lite0" and models.missing_onboard() == ""


def complete_file(url: str) -> None:
    """A file as large as the published one, of zeros."""
    with open(downloads.path_of(url), "wb") as file:
        file.truncate(103_000_000)


def test_without_the_package_auto_is_what_is_cached(monkeypatch: pytest.MonkeyPatch, any_checksum: None) -> None:
    monkeypatch.setattr(efficientnet_lite, "weights_file", lambda: None)
    assert models.first_ready() is None and models.default_name() == "efficientnet_lite0"

    complete_file(weights_by_name()["resnet50"].url)

    assert models.default_name() == models.first_ready() == "resnet50"
    assert "pip install" in models.missing_onboard()


def test_a_truncated_file_is_not_ready(monkeypatch: pytest.MonkeyPatch, any_checksum: None) -> None:
    monkeypatch.setattr(efficientnet_lite, "weights_file", lambda: None)
    downloads.path_of(weights_by_name()["resnet50"].url).write_bytes(b"x" * 1000)

    assert models.first_ready() is None


def test_flag_and_variable_choose_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag overrides the variable; `auto` is the same as none."""
    monkeypatch.setenv("HOOKLENS_MODEL", "vgg11")
    assert models.default_name() == "vgg11" and models.default_name("alexnet") == "alexnet"
    assert models.default_name("auto") == "vgg11"

    monkeypatch.setenv("HOOKLENS_MODEL", "auto")
    assert models.default_name() == "efficientnet_lite0"


def test_a_host_may_offer_named_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLENS_MODELS", "resnet18, efficientnet_lite0,")
    assert [info.name for info in models.list_models()] == ["efficientnet_lite0", "resnet18"]
    assert models.load_model().name == "efficientnet_lite0"

    with pytest.raises(ModelUnavailable, match="does not offer 'resnet50'; it offers: efficientnet_lite0, resnet18"):
        models.load_model("resnet50")
    with pytest.raises(ModelUnavailable, match="There is no model 'resnet19': did you mean 'resnet18'"):
        models.load_model("resnet19")


def test_a_host_may_leave_the_model_on_board_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLENS_MODELS", "resnet18")

    assert models.default_name() == "resnet18" and models.first_ready() is None
    assert models.missing_onboard() == "", "it is not offered"
    with pytest.raises(ModelUnavailable, match="no other model is ready"):
        models.load_model()
