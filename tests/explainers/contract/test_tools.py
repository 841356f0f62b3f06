"""Public functions and methods for tools that are built on the library, such as the page."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import Facts


class Crops(nn.Module):
    """A network that crops and flips its input, so that its cells do not cover it evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU6(), nn.Conv2d(4, 6, 3, 2), nn.ReLU6())
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.features(x[..., 4:-4, 6:].flip(-1)).mean((2, 3)))


@pytest.fixture
def net() -> Crops:
    torch.manual_seed(0)
    return Crops().eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 40, 40, generator=torch.Generator().manual_seed(1))


def test_contributions_are_sums_of_activation_times_gradient(net: Crops, images: Tensor) -> None:
    """Oracle: autograd by hand. Their sum is that of HiResCAM without its ReLU, and images do not affect each other."""
    found = explainers.channel_contributions(net, images, [3, 1], layer="features.1")

    cropped = images[..., 4:-4, 6:].flip(-1)
    activations = net.features[1](net.features[0](cropped)).detach().requires_grad_()
    scores = net.fc(net.features[2:](activations).mean((2, 3)))
    (gradients,) = torch.autograd.grad(scores[[0, 1], [3, 1]].sum(), activations)
    torch.testing.assert_close(found, (activations * gradients).sum((2, 3)).double(), check_dtype=True)
    total = explainers.hires_cam(net, images, [3, 1], layer="features.1", relu=False).sum((1, 2))
    torch.testing.assert_close(found.sum(1).float(), total)
    single = explainers.channel_contributions(net, images[1:], 1, layer="features.1")
    torch.testing.assert_close(single, found[1:])
    assert all(parameter.grad is None for parameter in net.parameters())


def test_fields_of_central_and_of_all_cells_are_those_of_single_cells(net: Crops, images: Tensor) -> None:
    layers = explainers.list_layers(net, images)
    centers = explainers.center_receptive_fields(layers)
    for layer, box in zip(layers, centers, strict=True):
        if layer.grid is None:
            assert box is None
            continue
        height, width = layer.grid
        assert box == layer.receptive_field(((height - 1) // 2, (width - 1) // 2))
        assert layer.shape[layer.channel_axis] in (3, 4, 5, 6)
        found = layer.receptive_fields()
        assert found is not None and len(found[0]) == height and len(found[1]) == width
        for row, column in ((0, 0), (1, 2), (height - 1, width - 1)):
            (top, bottom), (left, right) = found[0][row], found[1][column]
            assert layer.receptive_field((row, column)) == (left, top, right, bottom)
    assert layers[0].receptive_fields(0.0) is None, "no time"
    assert explainers.center_receptive_fields([]) == []
    with pytest.raises(explainers.LayerNotFound, match="pickled"):
        explainers.center_receptive_fields(pickle.loads(pickle.dumps(layers)))


def test_a_cut_off_cell_has_a_gradient_before_its_activation(net: Crops, images: Tensor) -> None:
    """Weights times 100 take most cells of the ReLU6 over 6, where its gradient is 0."""
    net.features[0].weight.data.mul_(100)
    before = net.features[0](images[:1, :, 4:-4, 6:].flip(-1))[0].detach()
    channel, row, column = (int(k) for k in (before == before.max()).nonzero()[0])
    target = explainers.BeforeActivation("features.1", channel, (row, column))

    assert not explainers.saliency(net, images[:1], explainers.unit("features.1", channel, (row, column))).any()
    assert explainers.saliency(net, images[:1], target).any()
    value = target.value(net, images[:1])
    assert value is not None and float(value) == pytest.approx(float(before.max()))
    assert explainers.BeforeActivation("features.0", channel, (row, column)).value(net, images[:1]) is None


@pytest.mark.parametrize(
    ("end", "kind"),
    [(nn.Identity(), "softmax"), (nn.Softmax(1), "identity"), (nn.Sigmoid(), "identity"), (nn.LogSigmoid(), "log")],
)
def test_the_score_of_a_network_is_detected(end: nn.Module, kind: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), end).eval()
    images = torch.rand(2, 3, 16, 16)
    assert explainers.detect_score(net, images) == explainers.detect_score(net, images, classes=4) == kind
    with explainers.declared_score("logit"):
        assert explainers.detect_score(net, images) == "logit"


def test_a_single_score_is_that_of_a_label() -> None:
    net = nn.Sequential(nn.Conv2d(3, 1, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    assert explainers.detect_score(net, torch.rand(1, 3, 16, 16)) == "sigmoid"
    maps = nn.Conv2d(3, 5, 3).eval()
    assert explainers.detect_score(maps, torch.rand(1, 3, 16, 16), classes=5) == "softmax"
    with pytest.raises(explainers.BadTarget, match="not scores"):
        explainers.detect_score(maps, torch.rand(1, 3, 16, 16))


def test_scores_are_checked_with_an_output() -> None:
    for score, output in ((None, torch.rand(1, 3)), ("sigmoid", torch.rand(1, 3)), ("identity", torch.rand(1, 3))):
        explainers.check_score(score, output)
    with pytest.raises(explainers.BadOption, match="probabilities"):
        explainers.check_score("identity", {"logits": torch.tensor([[3.0, -1.0]])})
    with pytest.raises(explainers.BadTarget):
        explainers.check_score("identity", {"boxes": torch.rand(1, 4)})
    with pytest.raises(explainers.BadOption, match="Did you mean 'softmax'"):
        explainers.check_score("sofmax")


def test_classes_of_pixels_and_their_areas() -> None:
    maps = torch.zeros(1, 3, 2, 3)
    maps[0, 1, :, :2], maps[0, 2, 0, 2] = 1.0, 2.0
    (classes,) = explainers.pixel_classes({"out": maps})
    assert classes.tolist() == [[1, 1, 2], [1, 1, 0]]
    assert explainers.pixel_classes(maps).equal(classes[None])
    assert list(explainers.classes_by_area(classes, last={1})) == [0, 2, 1]
    assert explainers.connected_components(classes).tolist() == [[0, 0, 1], [0, 0, 2]]
    with pytest.raises(explainers.BadTarget, match="not class maps"):
        explainers.pixel_classes(torch.rand(1, 3))


def test_an_evaluation_gives_its_means_results_and_order(net: Crops, images: Tensor) -> None:
    found = explainers.evaluate(net, images, "grad_cam", target=[3, 1], steps=4, metrics=["deletion", "insertion"])
    mean, error = found.mean_and_error("deletion")
    values = found.values["deletion"].double()
    assert (mean, error) == pytest.approx((float(values.mean()), float(values.std() / 2**0.5)))
    other = found.controls["deletion"]["edge"]
    assert found.mean_and_error("deletion", "edge")[0] == pytest.approx(float(other.double().mean()))
    assert found.results == {
        name: {control: found.compare(name, control).verdict for control in each}
        for name, each in found.controls.items()
    }
    ranks = found.pixel_ranks()
    assert ranks.shape == found.maps.shape
    for plane, own in zip(found.maps.flatten(1), ranks.flatten(1), strict=True):
        assert own.sort().values.equal(torch.arange(own.numel(), dtype=own.dtype))
        assert (plane[own.argsort()].diff() <= 0).all(), "highest first"


@pytest.mark.parametrize(
    ("probabilities", "score", "exclusive"),
    [((0.5, 0.5), "softmax", True), ((0.5, 0.5), "sigmoid", False), ((0.9, 0.9), "identity", False), ((), None, False)],
)
def test_classes_are_exclusive_if_their_probabilities_sum_to_1(
    probabilities: tuple[float, ...], score: str | None, exclusive: bool
) -> None:
    found = Facts(total=1.0).with_probabilities(probabilities, score)
    assert (found.total, found.probabilities, found.exclusive) == (1.0, probabilities, exclusive)


def test_the_dependence_on_the_class_follows_from_the_correlation() -> None:
    for correlation, expected in ((None, ""), (float("nan"), ""), (0.2, "depends"), (0.7, "partly"), (0.995, "hardly")):
        assert Facts(correlation=correlation).class_dependence == expected
        assert Facts(correlation=correlation, reads_class=False).class_dependence == ""
