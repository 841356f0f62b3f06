"""Maps in notebooks: images are those of the network, the HTML is complete and safe, wrong uses are refused."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from explainers import Contrast, Explanation, Probability, explain, show, show_channels, unit
from explainers.display.figure import IMAGENET, network_inputs
from explainers.explanation.figures import figures
from explainers.findings import Finding
from explainers.maps.overlays import overlay

MOST_BYTES = 300_000
"""Size of one map in a notebook."""


def network(outputs: int = 3) -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs)]
    return nn.Sequential(*layers).eval()


def explained(images: int = 1, **settings: object) -> Explanation:
    return explain("grad_cam", network(), torch.rand(images, 3, 24, 32), 1, layer="0", **settings)


def decoded(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))


def data_of(html: str) -> list[dict]:
    calls = re.findall(r'^showMap\(document\.getElementById\("(saliscope-\w+)"\), (.*)\);$', html, re.M)
    assert all(f'id="{mark}"' in html for mark, _ in calls)
    return [json.loads(data) for _, data in calls]


def test_known_normalizations_are_undone():
    colors = torch.rand(2, 3, 8, 8)
    colors[:, :, 0, 0], colors[:, :, 0, 1] = 0, 1
    for mean, std, note in (
        ((0, 0, 0), (1, 1, 1), ""),
        ((0, 0, 0), (1 / 255, 1 / 255, 1 / 255), ""),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "normalization with mean 0.5 undone"),
        (*IMAGENET, "normalization of ImageNet undone"),
    ):
        given = (colors - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
        for one, original in zip(network_inputs(given), colors, strict=True):
            assert one.note == note
            assert (one.pixels.permute(2, 0, 1).float() - original * 255).abs().max() <= 0.51


def test_other_inputs_are_stretched_or_cut_with_a_note():
    (wide,) = network_inputs(torch.linspace(-7, 9, 3 * 16).reshape(1, 3, 4, 4))
    assert wide.note == "colors stretched, because the normalization is unknown"
    assert (int(wide.pixels.min()), int(wide.pixels.max())) == (0, 255)
    (gray,) = network_inputs(torch.rand(1, 1, 4, 4))
    assert bool((gray.pixels == gray.pixels[..., :1]).all())
    (bands,) = network_inputs(torch.rand(1, 6, 4, 4))
    assert bands.note.startswith("bands 1 to 3 of 6")
    for value in (1000.0, torch.nan):
        (constant,) = network_inputs(torch.full((1, 3, 4, 4), value))
        assert int(constant.pixels.max()) == 0


def test_one_map_says_class_score_and_unit_and_is_small():
    """Large maps are packed with half precision, small ones are exact; the static image is the overlay."""
    images = torch.rand(1, 3, 224, 224)
    e = explain("integrated_gradients", network(), images, 1, steps=2)
    html = show(e, labels=["cat", "dog", "<b>fish</b>"])._repr_html_()
    assert f"dog (class 1), {float(e.probabilities[0, 1]):.1%}" in html
    assert f"Score {float(e.scores[0, 1]):.4g}; softmax probability." in html
    assert len(html) < MOST_BYTES
    (data,) = data_of(html)
    assert data["unit"] == "logit" and data["signed"]
    half = unpacked(data["map"], torch.float16) * data["map"]["scale"]
    assert torch.allclose(half.reshape(224, 224), e.map[0].float(), atol=float(e.map.abs().max()) / 1000)

    e = explained()
    html = show(e).html
    (data,) = data_of(html)
    assert torch.equal(unpacked(data["map"], torch.float32), e.map[0].flatten())
    figure = figures(e)[0]
    expected = overlay(figure.photo.resize((224, 168)), e.map[0])
    assert figure.drawn.crop((0, 0, 224, 168)).tobytes() == expected.tobytes()
    assert decoded(re.search(r'<img src="([^"]+)"', html)[1]).size == figure.drawn.size


def unpacked(packed: dict, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(packed["b64"])), dtype=dtype).float()


def test_the_unit_is_that_of_the_target_and_of_the_scores():
    """Gradients are magnitudes with their quantity, unless signs are requested."""
    net, images = network(), torch.rand(1, 3, 24, 32)
    softmax = nn.Sequential(net, nn.Softmax(1)).eval()
    gradient = explain("saliency", net, images, 1)
    quantity = "|gradient| in logit per unit of input"
    for e, options, unit_, signed in (
        (explain("grad_cam", net, images, unit("0", 1), layer="0"), {}, "activation", False),
        (explain("grad_cam", softmax, images, 1, layer="0.0"), {}, "probability", True),
        (gradient, {}, quantity, False),
        (gradient, {"signed": True}, None, True),
        (gradient, {"colors": "signed"}, None, True),
    ):
        (data,) = data_of(show(e, **options).html)
        assert unit_ in (None, data["unit"]) and (data["signed"] == signed or unit_ in ("activation", "probability"))
        assert options.get("colors") in (None, data["drawing"]["colors"])


def test_text_of_labels_targets_and_findings_is_never_markup():
    e = explained()
    evil = "</script><img src=x onerror=alert(1)>"
    html = show(e, labels=[evil] * 3).html
    assert "<img src=x" not in html
    assert html.count("</script>") == 1
    finding = replace(explain("grad_cam", network(), torch.zeros(1, 3, 8, 8), 1, layer="0"), layer=evil)
    assert "<img src=x" not in show(finding).html


def test_each_map_has_its_image_and_the_rest_is_counted(tmp_path):
    e = explained(3)
    html = show([e, e], most=5).html
    assert len(data_of(html)) == 5 and "5 of 6 maps are shown." in html
    assert repr(show([e, e], most=5)) == "Display(5 of 6 maps)"
    assert html.count("const showMap") == 1
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    given = [Image.new("RGB", (32, 24), color) for color in colors]
    for data, color in zip(data_of(show(e, given).html), colors, strict=True):
        assert decoded(data["image"]).getpixel((5, 5)) == pytest.approx(color, abs=5)
    e.to_html(tmp_path / "page.html", labels=["a", "b", "c"])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and len(data_of(page)) == 3
    assert page.count("<tr>") > 9  # the most likely classes, the settings and the statistics
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)


def test_an_explanation_shows_itself_and_survives_saving(tmp_path):
    e = explained()
    bundle = e._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    assert bundle["text/plain"] == repr(e)
    assert "..<" not in bundle["text/html"], "sentences end with one period"
    assert Image.open(io.BytesIO(bundle["image/png"])).size == figures(e)[0].drawn.size
    e.save(tmp_path / "map.npz")
    loaded = Explanation.load(tmp_path / "map.npz")
    assert loaded.images is None
    assert "The explanation has no image." in loaded._repr_html_()
    (drawn,), (with_image,) = figures(loaded), figures(e)
    assert abs(drawn.drawn.width / drawn.drawn.height - with_image.drawn.width / with_image.drawn.height) < 0.1


def test_videos_show_the_frame_with_the_strongest_values_and_large_maps_are_averaged():
    clip = torch.zeros(1, 3, 8, 16, 16)
    clip[:, :, 5] = 0.9
    net = nn.Sequential(nn.Conv3d(3, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()).eval()
    heat = torch.zeros(1, 8, 4, 4).index_fill(1, torch.tensor(5), 1)
    (video,) = figures(replace(explain("grad_cam", net, clip, 1, layer="0"), map=heat))
    assert "the frame with the strongest values, 6 of 8" in video.lines
    assert int(video.pixels.min()) == round(0.9 * 255) and bool((video.map == 1).all())
    (large,) = figures(replace(explained(), map=torch.arange(512.0 * 300).reshape(1, 512, 300)))
    assert large.map.shape == (256, 150) and "shown with means of cells, at most 256 in a row" in large.lines
    assert float(large.map[0, 0]) == pytest.approx((0 + 1 + 300 + 301) / 4)


def test_channels_are_drawn_in_their_own_ranges():
    features = torch.stack(
        [torch.linspace(0, 4, 16).reshape(4, 4), torch.full((4, 4), 7.0), torch.full((4, 4), torch.nan)]
    )
    html = show_channels(features).html
    assert [line in html for line in ("0: 0 to 4", "1: 7 to 7", "2: nan to nan")] == [True] * 3
    first, constant, broken = (decoded(each) for each in re.findall(r'<img src="([^"]+)"', html))
    assert first.size == (96, 96)
    assert sum(first.getpixel((90, 90))) > 600 > 60 > sum(first.getpixel((5, 5)))
    assert sum(constant.getpixel((5, 5))) < 60
    assert all(abs(value - 128) < 4 for value in broken.getpixel((5, 5)))
    assert repr(show_channels(features[None], [2])) == "Display(1 of 3 channels)"
    assert "<p>1 of 3 channels</p>" in show_channels(features[None], [2]).html


def test_titles_settings_and_findings_have_the_names_of_classes(tmp_path):
    net, images, labels = network(), torch.rand(1, 3, 24, 32), ["cat", "dog", "fish"]
    contrast = explain("grad_cam", net, images, Contrast(2, (0, 1)), layer="0")
    title = "Contrast(class_=fish (class 2), against=(cat (class 0), dog (class 1)))"
    assert f">{title}<" in show(contrast, labels=labels).html
    assert ">Contrast(class_=2, against=(0, 1))<" in show(contrast).html
    probability = explain("grad_cam", net, images, Probability(2), layer="0")
    assert "Probability(classes=fish (class 2))" in show(probability, labels=labels).html
    assert "Probability(classes=class 2)" in show(probability, labels=labels[:2]).html
    finding = Finding("unlikely_target", "Class 1 ranks 3 of 3; the network predicts class 2 (0.9). See class 20.")
    named = replace(explained(), findings=[[finding]])
    sentence = "dog (class 1) ranks 3 of 3; the network predicts fish (class 2) (0.9). See class 20."
    assert sentence in show(named, labels=labels).html
    named.to_html(tmp_path / "page.html", labels=labels)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(f">{name} (class {k})<" in page for k, name in enumerate(labels))


def test_without_pillow_the_text_remains(monkeypatch):
    e = explained()
    monkeypatch.setattr("explainers.explanation.figures.has_pillow", lambda: False)
    assert e._repr_mimebundle_() == {"text/plain": repr(e)}
    assert e._repr_html_() is None
    with pytest.raises(ImportError, match="pip install pillow"):
        show(e)
