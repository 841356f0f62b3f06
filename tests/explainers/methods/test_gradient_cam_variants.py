"""Variants of Grad-CAM: Smooth Grad-CAM++, element-wise, ShapleyCAM (Hessian term), Finer-CAM."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import explainers
from explainers import (
    BadTarget,
    element_wise_grad_cam,
    explain,
    finer_cam,
    grad_cam,
    grad_cam_pp,
    hires_cam,
    shapley_cam,
    smooth_grad_cam_pp,
)
from explainers.maps.resize import resize
from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import (
    ClassToken,
    Residual,
    act_grad,
    cam_by_hand,
    curved,
    plain,
    random_images,
    rel,
    residual,
    settle,
    top,
)
from tests.support.oracles.cams import gradient_at

CLASSES = [2, 0, 5]


def scaled(maps, size):
    """pytorch-grad-cam's normalization: ReLU, min-max, bilinear, min-max."""

    def stretch(m):
        low, high = m.amin((1, 2), keepdim=True), m.amax((1, 2), keepdim=True)
        return (m - low) / (high - low)

    return stretch(resize(stretch(maps.relu()), size))


# Smooth Grad-CAM++


def test_p32_activations_are_the_clean_ones_and_gradients_are_means():
    """torchcam uses the activations and the gradient of the last noisy sample."""
    net, images = curved(), random_images(1)
    a = act_grad(net, net.act1, images, [2])[0]
    generator = PerImageGenerators(1, 0)
    spread = 0.3 * (images.max() - images.min())
    noisy = [images + spread * generator.normal_noise(0, 1, 3, 12, 16)[0].double() for _ in range(4)]
    taken = [act_grad(net, net.act1, x, [2])[:2] for x in noisy]
    m1, m2, m3 = (sum(g**p for _, g in taken) / 4 for p in (1, 2, 3))

    def by_hand(activations, first):
        alpha = m2 / (2 * m2 + a.sum((2, 3), keepdim=True) * m3)
        return ((alpha * first.relu()).sum((2, 3), keepdim=True) * activations).sum(1)

    actual = smooth_grad_cam_pp(net, images, 2, layer="act1", samples=4, sigma=0.3)

    torch.testing.assert_close(actual, by_hand(a, m1).relu(), rtol=1e-9, atol=1e-12)
    for wrong in (by_hand(taken[-1][0], m1), by_hand(a, taken[-1][1])):
        assert rel(actual, wrong.relu()) > 0.02, "the case must tell the peer's mistakes"


def test_smooth_grad_cam_pp_without_noise_is_grad_cam_pp():
    net, images = curved(), random_images()
    found = smooth_grad_cam_pp(net, images, CLASSES, layer="act2", samples=3, sigma=0.0)
    torch.testing.assert_close(found, grad_cam_pp(net, images, CLASSES, layer="act2"), rtol=1e-9, atol=1e-12)


def test_smooth_grad_cam_pp_uses_the_clean_images_class_for_noisy_copies():
    net, images = curved(), random_images(6)
    named = smooth_grad_cam_pp(net, images, top(net, images), layer="act2", samples=4, sigma=1.0)
    assert torch.equal(smooth_grad_cam_pp(net, images, layer="act2", samples=4, sigma=1.0), named)


def test_smooth_grad_cam_pp_without_effect_of_noise_is_a_finding():
    """Before pooling and a linear head the gradient is constant: the head's weights."""
    net, images = residual(), random_images()
    e = explain("smooth_grad_cam_pp", net, images, CLASSES, samples=3)
    torch.testing.assert_close(e.map, grad_cam_pp(net, images, CLASSES))
    assert all(found[0].code == "unmoved_by_noise" for found in e.findings)
    earlier = explain("smooth_grad_cam_pp", net, images, CLASSES, layer="layer1", samples=3)
    assert not any(each.code == "unmoved_by_noise" for found in earlier.findings for each in found)


def test_smooth_grad_cam_pp_stopped_early_and_in_batches():
    net, images = curved(), random_images()
    for size in (1, 2, 50):
        found = smooth_grad_cam_pp(net, images, CLASSES, layer="act2", samples=5, batch_size=size)
        for n, c in enumerate(CLASSES):
            alone = smooth_grad_cam_pp(net, images[n : n + 1], c, layer="act2", samples=5)
            torch.testing.assert_close(found[n], alone[0], rtol=1e-10, atol=1e-13)
    stopped = smooth_grad_cam_pp(
        net, images, CLASSES, layer="act2", samples=5, batch_size=1, progress=lambda partial: partial.done < 3
    )
    three = smooth_grad_cam_pp(net, images, CLASSES, layer="act2", samples=3)
    torch.testing.assert_close(stopped, three, rtol=1e-10, atol=1e-13)


# Element-wise


def test_element_wise_equals_hires_cam_without_negative_evidence():
    net, images = plain(), random_images()
    net.head.weight.data.abs_()
    torch.testing.assert_close(
        element_wise_grad_cam(net, images, 1, layer="relu2"), hires_cam(net, images, 1, layer="relu2")
    )


def test_element_wise_minus_that_of_the_negated_score_is_hires_cam():
    """relu(v) - relu(-v) = v."""
    net, images = curved(), random_images()
    both = element_wise_grad_cam(net, images, 3, layer="act2") - element_wise_grad_cam(
        net, images, lambda scores: -scores[:, 3], layer="act2"
    )
    torch.testing.assert_close(both, hires_cam(net, images, 3, layer="act2"), rtol=1e-10, atol=1e-13)


# ShapleyCAM


def test_p41_zero_hessian_of_a_relu_logit_is_a_finding():
    net, images = residual(), random_images()
    e = explain("shapley_cam", net, images, CLASSES, layer="layer1", score="logit")
    torch.testing.assert_close(e.raw, cam_by_hand(net, net.layer1, images, CLASSES), rtol=1e-10, atol=1e-13)
    for found in e.findings:
        (told,) = [each for each in found if each.code == "no_curvature"]
        assert told.remedy == {"score": "rest"} and "Grad-CAM" in told.sentence


def test_p41_the_default_score_has_a_hessian_term():
    net, images = residual(), random_images()
    e = explain("shapley_cam", net, images, CLASSES, layer="layer1")
    assert not any(each.code == "no_curvature" for found in e.findings for each in found)

    def rest(scores):
        return scores[:, 2] + scores.log_softmax(1)[:, 2]

    first_order = grad_cam(net, images, rest, layer="layer1", relu=False)
    assert rel(shapley_cam(net, images, 2, layer="layer1", relu=False), first_order) > 0.01


@pytest.mark.parametrize("score", ["rest", "logit", "probability"])
@pytest.mark.parametrize("net", [curved, residual], ids=["curved", "residual"])
def test_p41_hessian_term_by_finite_differences(net, score):
    net, images = net(), random_images()
    name = "act1" if isinstance(net, nn.Sequential) else "layer1"
    layer = net.get_submodule(name)

    def own(scores):
        z = scores[range(3), CLASSES]
        chance = z - scores.exp().sum(1).log()
        return {"rest": z + chance, "logit": z, "probability": chance.exp()}[score]

    step = 1e-4
    a, g = gradient_at(net, layer, images, own)
    more, less = (gradient_at(net, layer, images, own, 1 + s)[1] for s in (step, -step))
    expected = ((g - (more - less) / (4 * step)).mean((2, 3), keepdim=True) * a).sum(1)
    actual = shapley_cam(net, images, CLASSES, layer=name, score=score, relu=False)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-8)


def test_shapley_cam_through_attention():
    """Fused attention has no second derivative; the decomposed attention has one and is the same function."""
    net = settle(ClassToken().double())
    images = random_images(2, 3, 32, 128)
    name = "blocks.0"
    layer = net.blocks[0]

    def own(scores):
        return 2 * scores[:, 1] - scores.exp().sum(1).log()

    step = 1e-4
    a, g = gradient_at(net, layer, images, own)
    more, less = (gradient_at(net, layer, images, own, 1 + s)[1] for s in (step, -step))
    weights = g - (more - less) / (4 * step)
    maps, weights = (each[:, 1:].transpose(1, 2).unflatten(2, (2, 8)) for each in (a, weights))
    expected = (weights.mean((2, 3), keepdim=True) * maps).sum(1)
    actual = shapley_cam(net, images, 1, layer=name, relu=False)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-8)


def test_shapley_cam_leaves_probability_targets_unchanged():
    net, images = curved(), random_images()
    asked = shapley_cam(net, images, CLASSES, layer="act2", score="probability")
    torch.testing.assert_close(shapley_cam(net, images, explainers.Probability(CLASSES), layer="act2"), asked)


def test_shapley_cam_reports_class_and_logit():
    net, images = residual(), random_images()
    e = explain("shapley_cam", net, images, layer="layer1")
    scores = net(images).detach()
    assert e.target == scores.argmax(1).tolist()
    assert [s["target_score"] for s in e.statistics] == pytest.approx(scores.amax(1).tolist())


@pytest.mark.parametrize("score", ["rest", "probability"])
def test_shapley_cam_agrees_with_grad_cam_package(score):
    pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam import ShapleyCAM
    from pytorch_grad_cam.utils import model_targets

    kind = {"rest": "ClassifierOutputReST", "probability": "ClassifierOutputSoftmaxTarget"}[score]
    net, images = settle(Residual(width=8)), random_images(1).float()
    with ShapleyCAM(net, [net.layer2]) as extractor:
        found = torch.from_numpy(extractor(images, [getattr(model_targets, kind)(3)]))
    ours = shapley_cam(settle(Residual(width=8)), images, 3, layer="layer2", score=score)
    assert float((scaled(ours, images.shape[2:]) - found).abs().max()) < 1e-4 and found.any()


# Finer-CAM


def test_p42_uniform_weighting_is_a_contrast_with_the_mean_reference():
    net, images = curved(), random_images()
    scores = net(images).detach()
    for n, c in enumerate(CLASSES):
        near = (scores[n] - scores[n, c]).abs().argsort()[1:4].tolist()

        def contrast(out, c=c, near=near):
            return out[:, c] - 0.6 * out[:, near].mean(1)

        expected = grad_cam(net, images[n : n + 1], contrast, layer="act2", relu=False)
        actual = finer_cam(net, images[n : n + 1], c, layer="act2", relu=False)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_p42_likely_weighting_is_by_probability_with_its_gradient():
    net, images = curved(), random_images(1)
    scores = net(images).detach()[0]
    near = (scores - scores[2]).abs().argsort()[1:4].tolist()

    def weighted(out):
        p = out.softmax(1)[:, near]
        return (p * (out[:, 2:3] - 1.5 * out[:, near])).sum(1) / p.sum(1)

    expected = grad_cam(net, images, weighted, layer="act2", relu=False)
    options = {"weighting": "likely", "strength": 1.5}
    actual = finer_cam(net, images, 2, layer="act2", relu=False, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)
    assert rel(finer_cam(net, images, 2, layer="act2", relu=False, strength=1.5), expected) > 0.01


def test_p42_strength_zero_is_grad_cam():
    net, images = curved(), random_images()
    expected = grad_cam(net, images, CLASSES, layer="act2")
    torch.testing.assert_close(finer_cam(net, images, CLASSES, layer="act2", strength=0.0), expected)


def test_finer_cam_uses_at_most_the_other_classes_as_references():
    net, images = settle(Residual(classes=2).double()), random_images()
    against = grad_cam(net, images, lambda s: s[:, 1] - 0.6 * s[:, 0])
    torch.testing.assert_close(finer_cam(net, images, 1, references=9), against)


def test_finer_cam_refuses_single_scores_and_probabilities():
    with pytest.raises(BadTarget, match="single score"):
        finer_cam(settle(Residual(classes=1).double()), random_images(), 0)
    with pytest.raises(BadTarget, match="not in logits"):
        finer_cam(residual(), random_images(), explainers.Probability(1))


def test_finer_cam_with_tied_scores_never_references_the_target():
    """Two classes with equal logits: the other one is the reference, never the target itself."""
    net, images = curved(), random_images(1)
    net.head.weight.data[4] = net.head.weight.data[2]
    net.head.bias.data[4] = net.head.bias.data[2]
    for own, other in ((2, 4), (4, 2)):
        expected = grad_cam(net, images, lambda s, a=own, b=other: s[:, a] - 0.5 * s[:, b], layer="act2", relu=False)
        actual = finer_cam(net, images, own, layer="act2", references=1, strength=0.5, relu=False)
        torch.testing.assert_close(actual, expected)


def test_finer_cam_agrees_with_torchcam():
    torchcam = pytest.importorskip("torchcam.methods")
    if not hasattr(torchcam, "FinerCAM"):
        pytest.skip("this torchcam has no FinerCAM")
    net, images = settle(Residual(width=16)), random_images(1).float()
    with torchcam.FinerCAM(net, "layer2", input_shape=(3, 12, 16)) as extractor:
        expected = extractor(3, net(images), normalized=False)[0]
    assert rel(finer_cam(net, images, 3, layer="layer2"), expected) < 1e-5


def test_finer_cam_and_element_wise_agree_with_grad_cam_package():
    pytest.importorskip("pytorch_grad_cam.finer_cam")
    from pytorch_grad_cam import FinerCAM, GradCAMElementWise
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    images, size = random_images(1).float(), (12, 16)
    net = settle(Residual(width=8))
    with FinerCAM(net, [net.layer2]) as extractor:
        found = torch.from_numpy(extractor(images))
    ours = finer_cam(settle(Residual(width=8)), images, layer="layer2", weighting="likely", strength=1.0)
    assert float((scaled(ours, size) - found).abs().max()) < 1e-4 and found.any()
    with GradCAMElementWise(net, [net.layer1]) as extractor:
        found = torch.from_numpy(extractor(images, [ClassifierOutputTarget(3)]))
    ours = element_wise_grad_cam(settle(Residual(width=8)), images, 3, layer="layer1")
    assert float((scaled(ours, size) - found).abs().max()) < 1e-4


def test_gradient_cam_variants_through_chosen_channels():
    """Gradients through single channels of another layer sum to the map; ShapleyCAM refuses them."""
    net, images = plain(), random_images()
    whole = finer_cam(net, images, 2, layer="relu1", relu=False)
    parts = [finer_cam(net, images, 2, layer="relu1", relu=False, through=("conv2", [k])) for k in range(8)]
    # The references do not depend on `through`, so the maps are additive like gradients.
    torch.testing.assert_close(sum(parts), whole, rtol=1e-9, atol=1e-12)
    with pytest.raises(BadTarget, match="first derivatives"):
        shapley_cam(net, images, 2, layer="relu1", through=("conv2", [1]))


# Layouts


class BothWays(nn.Module):
    """The same activations twice: channels first, then channels last."""

    def __init__(self):
        super().__init__()
        import torchvision

        self.body = plain()[:4]
        self.there = torchvision.ops.Permute([0, 2, 3, 1])
        self.back = torchvision.ops.Permute([0, 3, 1, 2])
        self.act = nn.Tanh()
        self.head = nn.Linear(8, 7)

    def forward(self, x):
        return self.head(self.act(self.back(self.there(self.body(x)))).mean((2, 3)))


ALSO_CHANNELS_LAST = [
    name
    for name, each in explainers.METHODS.items()
    if each.takes_layer and each.returns == "grid" and each.family == "cam" and name != "cam"
]


@pytest.mark.parametrize("name", ALSO_CHANNELS_LAST)
def test_every_cam_is_the_same_for_channels_last_layers(name):
    net, images = settle(BothWays().double()), random_images()
    small = {key: 2 for key in ("samples", "steps") if key in explainers.METHODS[name].options}
    first = explainers.METHODS[name](net, images, CLASSES, layer="body", **small)
    last = explainers.METHODS[name](net, images, CLASSES, layer="there", **small)
    torch.testing.assert_close(last, first, rtol=1e-9, atol=1e-11)
    assert tuple(first.shape) == (3, 6, 8) and first.any()


@pytest.mark.parametrize("name", ALSO_CHANNELS_LAST)
def test_every_cam_reads_tokens_as_a_grid(name):
    net, images = settle(ClassToken().double()), random_images(2, 3, 32, 128)
    small = {key: 2 for key in ("samples", "steps") if key in explainers.METHODS[name].options}
    found = explainers.METHODS[name](net, images, 1, layer="blocks.0", **small)
    assert tuple(found.shape) == (2, 2, 8) and found.isfinite().all() and found.any()
