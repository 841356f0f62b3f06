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

from explainers import BadOption, Contrast, Explanation, Probability, explain, show, show_channels, unit
from explainers.display.encoding import packed_map
from explainers.display.inputs import IMAGENET, network_inputs
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


@pytest.mark.parametrize(
    ("mean", "std", "note"),
    [
        ((0, 0, 0), (1, 1, 1), ""),
        ((0, 0, 0), (1 / 255, 1 / 255, 1 / 255), ""),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "normalization with mean 0.5 undone"),
        (*IMAGENET, "normalization of ImageNet undone"),
    ],
)
def test_known_normalizations_are_undone(mean, std, note):
    colors = torch.rand(2, 3, 8, 8)
    colors[:, :, 0, 0], colors[:, :, 0, 1] = 0, 1
    given = (colors - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    for one, original in zip(network_inputs(given), colors, strict=True):
        assert one.note == note
        assert (one.pixels.permute(2, 0, 1).float() - original * 255).abs().max() <= 0.51


def test_other_inputs_are_stretched_or_cut_with_a_note():
    (wide,) = network_inputs(torch.linspace(-7, 9, 3 * 16).reshape(1, 3, 4, 4))
    assert wide.note == "colors stretched, because the normalization is unknown"
    assert int(wide.pixels.min()) == 0
    assert int(wide.pixels.max()) == 255
    (gray,) = network_inputs(torch.rand(1, 1, 4, 4))
    assert bool((gray.pixels == gray.pixels[..., :1]).all())
    (bands,) = network_inputs(torch.rand(1, 6, 4, 4))
    assert bands.note.startswith("bands 1 to 3 of 6")
    (constant,) = network_inputs(torch.full((1, 3, 4, 4), 1000.0))
    assert int(constant.pixels.max()) == 0
    (broken,) = network_inputs(torch.full((1, 3, 4, 4), torch.nan))
    assert int(broken.pixels.max()) == 0


def test_one_map_says_class_score_and_unit_and_is_small():
    images = torch.rand(1, 3, 224, 224)
    e = explain("integrated_gradients", network(), images, 1, steps=2)
    html = show(e, labels=["cat", "dog", "<b>fish</b>"])._repr_html_()
    assert f"dog (class 1), {float(e.probabilities[0, 1]):.1%}" in html
    assert f"Score {float(e.scores[0, 1]):.4g}; softmax probability." in html
    assert len(html) < MOST_BYTES
    (data,) = data_of(html)
    assert data["unit"] == "logit"
    assert data["signed"]
    values = base64.b64decode(data["map"]["b64"])
    half = torch.frombuffer(bytearray(values), dtype=torch.float16).float() * data["map"]["scale"]
    assert torch.allclose(half.reshape(224, 224), e.map[0].float(), atol=float(e.map.abs().max()) / 1000)


def test_gradients_are_magnitudes_with_their_quantity():
    e = explain("saliency", network(), torch.rand(1, 3, 24, 32), 1)
    (data,) = data_of(show(e).html)
    assert data["unit"] == "|gradient| in logit per unit of input"
    assert not data["signed"]
    assert data_of(show(e, signed=True).html)[0]["signed"]
    assert data_of(show(e, colors="signed").html)[0]["signed"]


def test_the_unit_is_that_of_the_target_and_of_the_scores():
    net, images = network(), torch.rand(1, 3, 24, 32)
    units = {
        "activation": explain("grad_cam", net, images, unit("0", 1), layer="0"),
        "probability": explain("grad_cam", nn.Sequential(net, nn.Softmax(1)).eval(), images, 1, layer="0.0"),
    }
    for name, e in units.items():
        assert data_of(show(e).html)[0]["unit"] == name


def test_small_maps_are_exact_and_the_static_image_is_the_overlay():
    e = explained()
    figure = figures(e)[0]
    (data,) = data_of(show(e).html)
    assert data["map"]["dtype"] == "float32"
    exact = torch.frombuffer(bytearray(base64.b64decode(data["map"]["b64"])), dtype=torch.float32)
    assert torch.equal(exact, e.map[0].flatten())
    drawn = figure.drawn
    photo = figure.photo.resize((224, 168))
    assert drawn.crop((0, 0, 224, 168)).tobytes() == overlay(photo, e.map[0]).tobytes()
    static = decoded(re.search(r'<img src="([^"]+)"', show(e).html)[1])
    assert static.size == drawn.size


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
    assert len(data_of(html)) == 5
    assert "5 of 6 maps are shown." in html
    assert repr(show([e, e], most=5)) == "Display(5 of 6 maps)"
    assert html.count("const showMap") == 1
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    given = [Image.new("RGB", (32, 24), color) for color in colors]
    for data, color in zip(data_of(show(e, given).html), colors, strict=True):
        assert all(abs(a - b) < 6 for a, b in zip(decoded(data["image"]).getpixel((5, 5)), color, strict=True))
    e.to_html(tmp_path / "page.html", labels=["a", "b", "c"])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert len(data_of(page)) == 3
    assert page.count("<tr>") > 9  # the most likely classes, the settings and the statistics
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)


def test_an_explanation_shows_itself_and_survives_saving(tmp_path):
    e = explained()
    bundle = e._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    assert bundle["text/plain"] == repr(e)
    assert Image.open(io.BytesIO(bundle["image/png"])).size == figures(e)[0].drawn.size
    e.save(tmp_path / "map.npz")
    loaded = Explanation.load(tmp_path / "map.npz")
    assert loaded.images is None
    assert "The explanation has no image." in loaded._repr_html_()


def test_videos_show_the_frame_with_the_strongest_values():
    clip = torch.zeros(1, 3, 8, 16, 16)
    clip[:, :, 5] = 0.9
    net = nn.Sequential(nn.Conv3d(3, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()).eval()
    e = replace(
        explain("grad_cam", net, clip, 1, layer="0"), map=torch.zeros(1, 8, 4, 4).index_fill(1, torch.tensor(5), 1)
    )
    (figure,) = figures(e)
    assert "the frame with the strongest values, 6 of 8" in figure.lines
    assert int(figure.pixels.min()) == round(0.9 * 255)
    assert bool((figure.map == 1).all())


def test_large_maps_are_averaged():
    e = replace(explained(), map=torch.arange(512.0 * 300).reshape(1, 512, 300))
    (figure,) = figures(e)
    assert figure.map.shape == (256, 150)
    assert "shown with means of cells, at most 256 in a row" in figure.lines
    assert float(figure.map[0, 0]) == pytest.approx((0 + 1 + 300 + 301) / 4)


@pytest.mark.parametrize("values", [torch.full((80, 80), torch.nan), torch.zeros(80, 80), torch.full((80, 80), 1e30)])
def test_packed_maps_of_extreme_values(values):
    packed = packed_map(values)
    raw = torch.frombuffer(bytearray(base64.b64decode(packed["b64"])), dtype=torch.float16).float() * packed["scale"]
    assert torch.allclose(raw, values.flatten(), rtol=1e-3, equal_nan=True)


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
    assert f'saliscope-title">{title}<' in show(contrast, labels=labels).html
    assert 'saliscope-title">Contrast(class_=2, against=(0, 1))<' in show(contrast).html
    probability = explain("grad_cam", net, images, Probability(2), layer="0")
    assert "Probability(classes=fish (class 2))" in show(probability, labels=labels).html
    assert "Probability(classes=2)" in show(probability, labels=labels[:2]).html.replace("class 2)", "2)")
    finding = Finding("unlikely_target", "Class 1 ranks 3 of 3; the network predicts class 2 (0.9). See class 20.")
    named = replace(explained(), findings=[[finding]])
    assert "dog (class 1) ranks 3 of 3; the network predicts fish (class 2) (0.9). See class 20." in (
        show(named, labels=labels).html
    )
    named.to_html(tmp_path / "page.html", labels=labels)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<td class="saliscope-text">target</td><td class="saliscope-text">dog (class 1)</td>' in page
    assert all(f'<td class="saliscope-text">{name} (class {k})</td>' in page for k, name in enumerate(labels))


def test_wrong_uses_are_refused():
    e = explained(2)
    with pytest.raises(TypeError, match="Give the result of explain"):
        show(torch.rand(3))
    with pytest.raises(ValueError, match="1 images were given for 2 maps"):
        show(e, Image.new("RGB", (8, 8)))
    with pytest.raises(BadOption, match="most=0"):
        show(e, most=0)
    with pytest.raises(BadOption, match="jet"):
        show(e, colors="jet")
    with pytest.raises(BadOption, match="low below high"):
        show(e, limits=(2, 1))
    with pytest.raises(ValueError, match=r"\[K, h, w\]"):
        show_channels(torch.rand(2, 3, 4, 4))
    with pytest.raises(BadOption, match="Unknown channel 3"):
        show_channels(torch.rand(3, 4, 4), [3])


def test_without_pillow_the_text_remains(monkeypatch):
    e = explained()
    monkeypatch.setattr("explainers.explanation.figures.has_pillow", lambda: False)
    monkeypatch.setattr("explainers.explanation.result.has_pillow", lambda: False)
    assert e._repr_mimebundle_() == {"text/plain": repr(e)}
    assert e._repr_html_() is None
    with pytest.raises(ImportError, match="pip install pillow"):
        show(e)
