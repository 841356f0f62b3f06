"""TCAV: a planted concept is found, and random concepts are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import BadOption, BadTarget, saliency, tcav
from tests.explainers.concepts.planted import planted_images, planted_network
from tests.support.nets import curved, random_images
from tests.support.traces import nothing_left

PART = 4


def result(concept: int | None, seed: int, images: int = 20, **options):
    given = {
        "concept_images": planted_images(images, seed, always=concept)[0],
        "random_images": planted_images(400, 5)[0],
        "layer": "features",
    }
    return tcav(planted_network(), planted_images(30, 7, always=PART)[0], PART, **{**given, **options})


def test_a_planted_concept_is_found():
    found = result(PART, 6)
    assert found.is_significant and found.score == 1 and found.sensitivity > 0 and found.accuracy > 0.6
    assert result(PART, 6, comparisons=10).p_value == pytest.approx(10 * found.p_value)
    assert "random" in repr(found)


def test_random_concepts_are_not_found():
    """At most 5% of them, whether they are refused or not significant."""
    wrong = 0
    for seed in range(20):
        try:
            wrong += result(None, 100 + seed).is_significant
        except BadOption:
            continue
    assert wrong <= 1


def test_the_p_values_of_random_concepts_are_uniform():
    """Of the sets of random images, each compared with the others as a concept is."""
    found = result(PART, 6)
    others = [torch.cat([found.random[:n], found.random[n + 1 :]]) for n in range(len(found.random))]
    t = torch.stack(
        [(x - o.mean()) / (o.std() * (1 + 1 / len(o)) ** 0.5) for x, o in zip(found.random, others, strict=True)]
    )
    assert float((t.abs() > 2.1).double().mean()) <= 0.15


def test_the_sensitivity_is_a_derivative():
    """Oracle: central differences along the difference of mean features, added to all cells of the layer."""
    net, images = curved(), random_images(3)
    shift = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)[:, None, None]
    concept, others = random_images(8, seed=1) + shift, random_images(48, seed=2)
    with nothing_left(net, images):
        found = tcav(net, images, 2, concept_images=concept, random_images=others, layer="act1")
    before, after = net[:2], net[2:]

    def pooled(x):
        return before(x).mean((2, 3))

    with torch.no_grad():
        vector = pooled(concept).mean(0) - pooled(others).mean(0)
        step = 1e-5 * vector[:, None, None]
        change = (after(before(images) + step) - after(before(images) - step))[:, 2] / 2e-5
    assert torch.allclose(found.sensitivities, change, atol=1e-8)
    assert found.score == float((change > 0).double().mean())
    assert torch.allclose(found.direction.vector, vector / vector.norm())
    assert saliency(net, images, 2, through=found.direction).shape == images.shape


def test_wrong_input_is_refused():
    net, images = curved(), random_images(3)
    others = random_images(48, seed=2)
    for concept, random in ((images[:1], others), (images, others[:9]), (images, [others])):
        with pytest.raises(BadOption):
            tcav(net, images, 2, concept_images=concept, random_images=random, layer="act1")
    with pytest.raises(BadOption, match="separated"):
        tcav(net, images, 2, concept_images=others[:8], random_images=others[8:], layer="act1")
    dead = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)).double()
    nn.init.zeros_(dead[3].weight)
    with pytest.raises(BadTarget):
        tcav(dead, images, 1, concept_images=images + 1, random_images=others, layer="0")
