"""Names of units: the AUC by counting pairs, its interval by DeLong's formula and its coverage, planted concepts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from explainers import BadOption, WrongType, index_units
from explainers.concepts.names import auc_intervals, name_units


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("step", [0.0, 0.5, 3.0])
def test_the_auc_and_its_interval_are_those_of_all_pairs(step):
    """With `step`, values are rounded, so that many are equal."""
    values, has = draw(41), draw(3, 41, seed=1) > 0.3
    values[has[0]] += 1
    values = (values / step).round() * step if step else values
    found = auc_intervals(values, has)
    for name in range(3):
        ones, zeros = values[has[name]], values[~has[name]]
        wins = (ones[:, None] > zeros).double() + 0.5 * (ones[:, None] == zeros).double()
        auc, of_ones, of_zeros = float(wins.mean()), wins.mean(1), wins.mean(0)
        deviation = math.sqrt(float(of_ones.var()) / len(ones) + float(of_zeros.var()) / len(zeros))
        assert float(found[0][name]) == pytest.approx(auc, abs=1e-12)
        assert float(found[1][name]) == pytest.approx(max(0, auc - 1.959964 * deviation), abs=1e-9)
        assert float(found[2][name]) == pytest.approx(min(1, auc + 1.959964 * deviation), abs=1e-9)


def test_the_interval_covers_the_true_auc_in_most_samples():
    """Oracle: two normal distributions a distance d apart have an AUC of Phi(d / sqrt(2))."""
    true, inside = 0.5 * (1 + math.erf(0.5)), 0
    for seed in range(200):
        values, has = draw(120, seed=seed), torch.arange(120) % 3 == 0
        values[has] += 1
        _, low, high = auc_intervals(values, has[None])
        inside += float(low) <= true <= float(high)
    assert 180 <= inside <= 199


def test_planted_concepts_are_named_and_others_are_not():
    labels = [["cat", "animal"], ["dog", "animal"], ["car"], ["cup"]] * 40
    cat, animal = (torch.tensor([name in each for each in labels]).double() for name in ("cat", "animal"))
    activations = 0.5 * draw(160, 4)
    activations[:, 0] += 3 * cat
    activations[:, 1] += 3 * animal
    activations[:, 2] += 0.3 * cat  # too weak
    names = name_units(activations, labels)
    assert [each and each.name for each in names] == ["cat", "animal", None, None]
    assert (names[0].count, names[0].others) == (20, 60)
    assert 0.85 <= names[0].low <= names[0].auc <= names[0].high <= 1 and f"{names[0].auc:.2f}" in str(names[0])
    weak = name_units(activations, labels, least=0.5)[2]
    assert weak is None or weak.auc < 0.85


def test_the_number_is_from_images_that_did_not_propose_the_name():
    """A unit responds to another label in each part: the first proposes, the second only gives the number."""
    labels, held_out = ["cat", "dog", "car", "cup"] * 50, torch.arange(200) >= 100
    activations = draw(200, 1)
    activations[:100, 0] += torch.tensor([5.0 * (label == "cup") for label in labels[:100]])
    activations[100:, 0] += torch.tensor([20.0 * (label == "cat") for label in labels[100:]])
    for test, name in ((held_out, "cup"), (~held_out, "cat")):
        assert name_units(activations, labels, held_out=test) == [None]
        found = name_units(activations, labels, held_out=test, least=0.0)[0]
        assert found.name == name and found.auc < 0.7


def test_images_without_a_known_label_are_not_used():
    labels = ["cat", "dog"] * 30
    activations = torch.tensor([[float(label == "cat")] for label in labels]) + 0.01 * draw(60, 1)
    named = name_units(activations, labels)[0]
    unknown = torch.cat([activations, 100 + draw(20, 1)])
    assert name_units(unknown, [*labels, *[None] * 20])[0] == named
    assert name_units(activations, [None] * 60) == [None]
    assert name_units(activations[:8], labels[:8]) == [None]  # too few images for a test
    assert name_units(torch.zeros(60, 1), labels) == [None]  # a dead unit


@pytest.mark.parametrize(
    ("activations", "labels", "options", "error", "message"),
    [
        ([[1.0]], ["cat"], {}, WrongType, "activations"),
        (torch.zeros(3), ["cat"] * 3, {}, BadOption, "activations"),
        (torch.full((3, 1), torch.nan), ["cat"] * 3, {}, BadOption, "finite"),
        (torch.zeros(3, 1), ["cat"] * 2, {}, BadOption, "3 images"),
        (torch.zeros(3, 1), "cat", {}, BadOption, "labels"),
        (torch.zeros(3, 1), ["cat"] * 3, {"held_out": [True]}, BadOption, "held_out"),
        (torch.zeros(3, 1), ["cat"] * 3, {"least": 85}, BadOption, "least=85"),
        (torch.zeros(3, 1), ["cat"] * 3, {"top": 0}, BadOption, "top=0"),
    ],
)
def test_wrong_uses_are_refused(activations, labels, options, error, message):
    with pytest.raises(error, match=message):
        name_units(activations, labels, **options)


class TwoTowers(nn.Module):
    """An encoder of images by their mean color, and one of words; both have the same three dimensions."""

    WORDS = ("red", "green", "blue", "gray")

    def encode_images(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(images.mean((2, 3)), dim=1)

    def encode_texts(self, words: Sequence[str]) -> Tensor:
        colors = torch.cat([torch.eye(3), torch.ones(1, 3)])
        return nn.functional.normalize(colors[[self.WORDS.index(word) for word in words]], dim=1)


def test_words_of_an_image_and_text_encoder_are_names():
    """The recipe of docs/concepts.md: images have no labels, and an encoder chooses one of the words for each."""
    color = torch.eye(3).repeat(20, 1)[:, :, None, None]
    images = 0.2 * torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 0.7 * color
    model = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.copy_(
            torch.cat([torch.eye(3), torch.full((1, 3), 1 / 3)])[:, :, None, None].expand(-1, -1, 2, 2)
        )
    parts = []
    index_units(model.eval(), images, "1", progress=lambda batch: parts.append(batch.means["1"]))

    towers, words = TwoTowers(), TwoTowers.WORDS
    labels = [words[i] for i in (towers.encode_images(images) @ towers.encode_texts(words).T).argmax(1)]
    found = name_units(torch.cat(parts), labels)
    assert [each and each.name for each in found[:3]] == ["red", "green", "blue"] and found[3] is None
