"""Concepts of a layer and TCAV: planted parts are found, and the numbers agree with their definitions in float64."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import BadOption, find_concepts, intervene, saliency, tcav
from tests.explainers.concepts.planted import PARTS, matches, planted_images, planted_network
from tests.support.calls import codes
from tests.support.nets import Written, curved, plain, random_images, residual
from tests.support.traces import nothing_left

FITS = {"pca": {}, "nmf": {}, "sae": {"active": 2, "epochs": 3}}
METHODS = pytest.mark.parametrize("method", FITS)


def found_in(net: nn.Module, images: Tensor, method: str, k: int = 4, layer: str = "layer1"):
    return find_concepts(net, images, layer, k, method, **FITS[method])


@pytest.mark.parametrize(("method", "k", "options"), [("nmf", 10, {}), ("sae", 16, {"active": 1, "epochs": 20})])
def test_planted_parts_are_found(method, k, options):
    images, where = planted_images(100, 2)
    found = find_concepts(planted_network(), images, "features", k, method, **options)
    correlations = matches(found.maps(images), where).sort().values
    assert bool((correlations[1:] > 0.9).all()), f"{PARTS - 1} of {PARTS} parts"
    assert found.error < 0.05


def test_principal_components_of_a_decomposition():
    """Oracle: the singular value decomposition of the centered cells."""
    net, images = residual(), random_images(5)
    found = found_in(net, images, "pca")
    cells = found.features(images).movedim(1, -1).flatten(0, -2)
    centered = cells - cells.mean(0)
    _, values, vectors = torch.linalg.svd(centered, full_matrices=False)
    assert torch.allclose((found.dictionary.directions @ vectors[:4].T).abs(), torch.eye(4).double(), atol=1e-8)
    assert found.error == pytest.approx(float((values[4:] ** 2).sum() / (values**2).sum()))
    codes = found.maps(images)
    assert torch.allclose(codes.movedim(1, -1).flatten(0, -2).abs(), (centered @ vectors[:4].T).abs(), atol=1e-9)
    assert found.unexplained(images) == pytest.approx(found.error)


def test_nonnegative_activations_are_the_least_squares_solution():
    """Oracle: the conditions of Karush, Kuhn and Tucker, which only the solution fulfills."""
    net, images = residual(), random_images(5)
    found = found_in(net, images, "nmf")
    cells = found.features(images).movedim(1, -1).flatten(0, -2)
    codes = found.maps(images).movedim(1, -1).flatten(0, -2)
    slope = (found.dictionary.decode(codes) - cells) @ found.dictionary.directions.T
    assert float(codes.min()) >= 0 and bool((found.dictionary.directions >= 0).all())
    assert float(slope.min()) > -1e-6 and float((slope * codes).abs().max()) < 1e-6


def test_sparse_activations():
    """Oracle: the formula of a top-k autoencoder."""
    net, images = residual(), random_images(5)
    found = found_in(net, images, "sae", 8)
    own = found.dictionary
    cells = found.features(images).movedim(1, -1)
    values = ((cells - own.offset) @ own.encoder + own.bias).relu()
    least = values.sort(-1, descending=True).values[..., 1:2]
    assert torch.allclose(found.maps(images).movedim(1, -1), values.where(values >= least, 0))
    assert torch.allclose(own.directions.norm(dim=1), torch.ones(8).double())


@METHODS
def test_effects_are_those_of_an_intervention(method):
    """Oracle: `intervene` with the concept removed, one image at a time."""
    net, images = residual(), random_images(3)
    found = found_in(net, images, method)
    with nothing_left(net, images):
        effects, of_classes = found.effects(images, 2), found.class_effects(images)
    for index in range(len(found)):
        removed = intervene(net, images, found.layer, 2, value=found.scaling({index: 0}))
        assert torch.allclose(effects[:, index], removed.target_before - removed.target_after, atol=1e-10)
        assert torch.allclose(of_classes[index], -removed.change.mean(0), atol=1e-10)


@METHODS
def test_predicted_effects_are_exact_if_the_rest_is_linear(method):
    net, images = plain(), random_images(4)
    found = found_in(net, images, method, layer="relu2")
    assert torch.allclose(found.predicted_effects(images, 1), found.effects(images, 1), atol=1e-10)
    assert float(found.effects(images, 1).abs().max()) > 1e-3


def test_importance_is_the_sobol_index_of_a_function_with_a_known_one():
    """A score of a sum of concepts: the index of each is its part of the variance, a_i² / Σ a²."""

    def forward(self: nn.Module, images: Tensor) -> Tensor:
        x = self.body(images).mean((2, 3))
        return torch.stack([x @ x.new_tensor([3.0, 2.0, 1.0]), x.sum(1)], 1)

    net = Written(forward, body=nn.Identity())
    generator = torch.Generator().manual_seed(0)
    images = torch.eye(3).repeat(4, 3)[:, :, None, None].double()[:, :3] * 0.01
    images = images + torch.rand(12, 3, 4, 4, generator=generator, dtype=torch.float64)
    found = find_concepts(net, images, "body", 3, "pca")
    index = found.importance(images, 0, samples=512)
    effects = found.effects(images, 0)
    assert torch.allclose(index, effects**2 / (effects**2).sum(1, keepdim=True), atol=0.05)


@METHODS
def test_a_concept_is_a_target(method):
    """Oracle: the gradient of the activation in the map by finite differences."""
    net, images = residual(), random_images(2)
    found = found_in(net, images, method)
    gradient = saliency(net, images, found.concept(1, at=(0, 1)))
    step = 1e-6 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    change = (found.maps(images + step) - found.maps(images - step))[:, 1, 0, 1] / 2
    assert torch.allclose((gradient * step).flatten(1).sum(1), change, rtol=1e-3, atol=1e-12)


def test_maps_through_all_components_add_up():
    net, images = residual(), random_images(2)
    whole = saliency(net, images, 2)
    channels = found_in(net, images, "pca", 1).features(images).shape[1]
    every = found_in(net, images, "pca", channels, "layer2" if channels > 6 else "layer1")
    with nothing_left(net, images):
        parts = [saliency(net, images, 2, through=concept) for concept in every]
    assert torch.allclose(sum(parts), whole)
    assert not torch.allclose(parts[0], whole)
    assert explainers.grad_cam(net, images, 2, layer="conv1", through=every[0]).shape[0] == 2


@pytest.mark.parametrize(("method", "stop"), [("pca", 1), ("nmf", 1), ("nmf", 20), ("nmf", 62), ("sae", 2)])
def test_a_fit_that_stops_and_continues_is_one_fit(method, stop):
    """Also if it stops before the random starts of NMF are compared, which are steps of their own."""
    fit = functools.partial(find_concepts, residual(), random_images(4), "layer1", 4, method, **FITS[method])
    whole, maps = fit(), []
    stopped = fit(progress=lambda part: part.map is None or maps.append(part.map) or len(maps) < stop)
    assert method == "pca" or (stopped.steps == stop and not stopped.finished and 0 <= stopped.error <= 1)
    continued = fit(resume=stopped)
    assert torch.equal(continued.dictionary.directions, whole.dictionary.directions)
    assert continued.finished and continued.steps == whole.steps
    with pytest.raises(BadOption, match="seed"):
        fit(seed=1, resume=stopped)


def test_one_image_is_enough_and_bad_input_is_refused():
    net, images = residual(), random_images(3)
    assert len(found_in(net, images[:1], "nmf")) == 4
    one_by_one = nn.Sequential(nn.Conv2d(3, 6, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    assert len(find_concepts(one_by_one, random_images(1, 3, 2, 2), "0", 4, "pca")) == 4, "as many as cells"
    with pytest.raises(explainers.NoSpatialOutput):
        find_concepts(net, images, list(dict(net.named_children()))[-1])
    for options in ({"k": 0}, {"method": "ica"}, {"k": 10_000}, {"k": 7, "method": "pca"}, {"seed": -1}):
        with pytest.raises(BadOption):
            find_concepts(net, images, "layer1", **options)
    with pytest.raises(BadOption, match="equal"):
        find_concepts(nn.Sequential(nn.Conv2d(3, 2, 1).requires_grad_(False).double(), nn.Flatten()),
                      torch.zeros(2, 3, 4, 4).double(), "0", 1)  # fmt: skip
    found = found_in(net, images, "pca")
    with pytest.raises(BadOption, match="index"):
        found.scaling({9: 0})
    with pytest.raises(BadOption, match="channels"):
        found.encode(torch.zeros(1, 99, 2, 2))
    with pytest.raises(BadOption, match="Concept"):
        saliency(net, images, 2, through="layer1")


def test_segmentation_networks_and_inference_mode():
    """A network without class scores has the effects on its target, and a caller in inference mode gets the same."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).double()
    images = random_images(3)
    found = find_concepts(net, images, "1", 3)
    effects, through = found.effects(images), saliency(net, images, through=found[0])
    assert effects.shape == (3, 3) and bool(effects.any())
    with pytest.raises(explainers.BadTarget):
        found.class_effects(images)
    with torch.inference_mode():
        again = find_concepts(net, images, "1", 3)
        assert torch.allclose(again.effects(images), effects)
        assert torch.allclose(saliency(net, images, through=again[0]), through)


def test_a_concept_that_is_not_active_is_reported():
    """For a map through it, and for the concept as the target; only for the images in which it is silent."""
    net, images = planted_network(), planted_images(12, 3, grid=2, shown=2)[0]
    found = find_concepts(net, images, "features", 40, "sae", active=2, epochs=4)
    silent = ~found.maps(images).flatten(2).any(2)
    image, index = silent.nonzero()[0].tolist()
    for given in ({"through": found[index], "target": 1}, {"target": found[index]}):
        told = codes(explainers.explain("saliency", net, images[image : image + 1], **given))
        assert told.count("inactive_concept") == 1 and not {"no_gradient", "flat"} & set(told)
    seen = (~silent).nonzero()[0].tolist()
    told = codes(explainers.explain("saliency", net, images[seen[0] : seen[0] + 1], found[seen[1]]))
    assert "inactive_concept" not in told


# TCAV: a planted concept is found, and random concepts are not


PART = 4


def result(concept: int | None, seed: int, images: int = 20, **options):
    given = {
        "concept_images": planted_images(images, seed, always=concept, grid=2, shown=3)[0],
        "random_images": planted_images(400, 5, grid=2, shown=3)[0],
        "layer": "features",
    }
    return tcav(planted_network(), planted_images(30, 7, always=PART, grid=2, shown=3)[0], PART, **{**given, **options})


def test_a_planted_concept_is_found():
    found = result(PART, 6)
    assert found.is_significant and found.score == 1 and found.sensitivity > 0 and found.accuracy > 0.6
    assert result(PART, 6, comparisons=10).p_value == pytest.approx(10 * found.p_value)
    assert result(PART, 6, comparisons=10**9).p_value == 1
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
    broken = torch.cat([images, others[:5]]).index_fill(0, torch.tensor([7]), torch.nan)
    for concept, random in ((broken, others), (others[:8], [others[:8]] * 5 + [broken])):
        with pytest.raises(explainers.BadImages):
            tcav(net, images, 2, concept_images=concept, random_images=random, layer="act1")
    with pytest.raises(BadOption, match="separated"):
        tcav(net, images, 2, concept_images=others[:8], random_images=others[8:], layer="act1")
    dead = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)).double()
    nn.init.zeros_(dead[3].weight)
    with pytest.raises(explainers.BadTarget):
        tcav(dead, images, 1, concept_images=images + 1, random_images=others, layer="0")
