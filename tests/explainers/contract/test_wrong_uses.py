"""Invalid calls raise an error that says what was given and what to do, if possible before any computation.

Unambiguous values are accepted: NumPy's integers, arrays of classes, pixels in a tensor.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from explainers import (
    METHODS,
    BadTarget,
    BoxScores,
    Contrast,
    Logit,
    MaskScores,
    Probability,
    Similarity,
    Sum,
    Through,
    explain,
    grad_cam_sweep,
    occlusion,
    saliency,
    unit,
)
from tests.support.nets import DictNet, curved, plain, random_images, settle

NAN, INF = float("nan"), float("inf")


class Counting(nn.Module):
    """A network that counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = curved(), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.net(x)


def segmentation() -> nn.Module:
    return settle(DictNet().double())


# Targets


@pytest.mark.parametrize(
    "target",
    [
        np.array([1, 2, 0]),
        np.array([1, 2, 0], dtype=np.uint8),
        [np.int64(1), 2, torch.tensor(0)],
        torch.tensor([1, 2, 0]),
    ],
)
def test_arrays_and_their_numbers_are_classes(target):
    torch.testing.assert_close(
        saliency(curved(), random_images(), target), saliency(curved(), random_images(), [1, 2, 0])
    )


@pytest.mark.parametrize("target", [np.int64(2), np.array(2), torch.tensor(2)])
def test_a_numpy_number_is_one_class_for_all_images(target):
    torch.testing.assert_close(saliency(curved(), random_images(), target), saliency(curved(), random_images(), 2))
    assert explain("saliency", curved(), random_images(), target).target == [2, 2, 2]


@pytest.mark.parametrize(
    "target",
    [
        np.array([1.0, 2.0, 0.0]),
        np.array([True, False, True]),
        np.array([[1, 2, 0]]),
        np.array(["a", "b", "c"]),
        np.float64(1),
        np.bool_(True),
        [[1], [2], [0]],
        [1.0, 2.0, 0.0],
        torch.tensor([1.0, 2.0, 0.0]),
        torch.tensor(True),
        torch.tensor([1, 2, 0], device="meta"),
        {1, 2, 0},
        "cat",
        Logit,
    ],
    ids=lambda target: f"{type(target).__name__} {target}"[:40],
)
def test_an_invalid_class_is_refused(target):
    with pytest.raises((BadTarget, TypeError), match="^target is "):
        saliency(curved(), random_images(), target)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [0, 1, 2],
        lambda: torch.tensor([0, 1, 2]),
        lambda: np.array([0, 1, 2]),
        list,
        lambda: Logit([0, 1, 2]),
        lambda: Probability([0, 1, 2]),
        lambda: Sum(Logit(0), Logit([0, 1, 2])),
        lambda: Similarity(torch.ones(3, 7)),
        lambda: MaskScores(torch.ones(3, 5, 5), 1),
        lambda: MaskScores(torch.ones(5, 5), [0, 1, 2]),
        lambda: Through([0, 1, 2], "net.conv1", [0]),
        lambda: unit("net.conv1", 0, at=5),
    ],
)
@pytest.mark.parametrize(
    "name", ["saliency", "grad_cam", "occlusion", "lrp", "finer_cam", "rise", "integrated_gradients"]
)
def test_another_number_of_targets_is_refused_before_any_forward_pass(make, name):
    net = Counting().eval()
    if name == "finer_cam" and isinstance(make(), Probability):
        pytest.skip("it takes logits")
    with pytest.raises(BadTarget, match=r"given for 2 images|at=5"):
        METHODS[name](net, random_images(2), make())
    with pytest.raises(BadTarget, match=r"given for 2 images|at=5"):
        explain(name, net, random_images(2), make())
    with pytest.raises(BadTarget, match=r"given for 2 images|at=5"):
        grad_cam_sweep(net, random_images(2), make())
    assert net.calls == [0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sum(),
        lambda: Sum(None),
        lambda: Sum(unit("conv1", 0)),
        lambda: Sum(Through(1, "conv1", [0])),
        lambda: Contrast(1, []),
        lambda: Contrast([1, 2, 0], 0),
        lambda: Contrast(1, 1),
        lambda: Through(1, "conv1", []),
        lambda: Through(1, "conv1", None),
        lambda: Through(1, "conv1", 1.5),
        lambda: Through(Through(1, "conv1", [0]), "conv2", [0]),
        lambda: Similarity(torch.full((7,), NAN)),
        lambda: Similarity(torch.zeros(7)),
        lambda: Similarity(torch.tensor(1.0)),
        lambda: Similarity("cat"),
        lambda: MaskScores(torch.zeros(4, 4), 1),
        lambda: MaskScores(-torch.ones(4, 4), 1),
        lambda: MaskScores(torch.full((4, 4), INF), 1),
        lambda: MaskScores(torch.ones(4), 1),
        lambda: MaskScores(torch.ones(4, 4), True),
        lambda: MaskScores(torch.ones(4, 4), []),
        lambda: MaskScores(torch.ones(4, 4), ["cat"]),
        lambda: BoxScores(torch.zeros(4), (1,)),
        lambda: BoxScores(torch.zeros(0, 4), ()),
        lambda: BoxScores(torch.tensor([[5.0, 5, 1, 1]]), (1,)),
        lambda: BoxScores(torch.tensor([[0.0, 0, 1, 1]]), (1, 2)),
        lambda: BoxScores(torch.tensor([[0.0, 0, 1, 1]]), ("cat",)),
        lambda: BoxScores(torch.tensor([[0.0, 0, 1, 1]]), (1,), overlap=2),
    ],
)
def test_an_invalid_target_is_refused_on_creation(make):
    with pytest.raises(BadTarget, match=r"Give|give|Use"):
        make()


@pytest.mark.parametrize(
    "at", [5, (1,), (1, 2, 3), (1.5, 2), ("a", "b"), True, "top", ((1, 2), (3, 4)), (-1, 0), (99, 0)]
)
def test_an_invalid_cell_is_refused(at):
    with pytest.raises(BadTarget, match=r"at=|Cell"):
        saliency(curved(), random_images(), unit("conv2", 1, at=at))


@pytest.mark.parametrize("channel", ["a", 1.5, [1], None, True, -1, 99])
def test_an_invalid_channel_is_refused(channel):
    with pytest.raises(BadTarget, match=r"channel|Channel"):
        saliency(curved(), random_images(), unit("conv2", channel))
    with pytest.raises(BadTarget, match=r"channel|Channel"):
        saliency(curved(), random_images(), 1, through=("conv2", [channel]))


def test_cells_and_channels_of_numpy():
    net, x = curved(), random_images()
    expected = saliency(net, x, unit("conv2", 1, at=(1, 2)))
    for at in (np.array([1, 2]), [1, 2], torch.tensor([1, 2])):
        torch.testing.assert_close(saliency(net, x, unit("conv2", np.int64(1), at=at)), expected)
    some = saliency(net, x, 1, through=("conv2", [1, 2]))
    for channels in (np.array([1, 2]), torch.tensor([1, 2]), range(1, 3)):
        torch.testing.assert_close(saliency(net, x, 1, through=("conv2", channels)), some)


GRADIENTS = [
    "saliency",
    "grad_cam",
    "integrated_gradients",
    "lrp",
    "deep_lift",
    "smooth_grad",
    "layer_cam",
    "full_grad",
]


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize(
    "target",
    [
        lambda output: output[:, 1].detach(),
        lambda output: output.argmax(1).double(),
        lambda output: torch.ones(len(output)),
        lambda output: torch.tensor(output[:, 1].tolist()),
    ],
)
def test_a_target_that_detaches_is_refused_by_gradient_methods(name, target):
    with pytest.raises(BadTarget, match="without a gradient.*occlusion"):
        METHODS[name](plain(), random_images(2), target)


def test_a_target_that_detaches_works_for_methods_without_gradients():
    net, x = plain(), random_images(2)
    expected = occlusion(net, x, 1, window=6, stride=6)
    torch.testing.assert_close(occlusion(net, x, lambda output: output[:, 1].detach(), window=6, stride=6), expected)


def test_a_score_that_does_not_depend_on_the_layer_is_not_a_wrong_target():
    """The auxiliary head uses the layer, the score of the other head does not: its gradient is zero, and reported."""

    class Forked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.side = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return {"out": self.conv(x).mean((2, 3)), "aux": self.side(x).mean((2, 3))}

    e = explain("grad_cam", Forked().eval(), torch.randn(1, 3, 8, 8), lambda output: output["out"][:, 0], layer="side")
    assert "no_gradient" in [finding.code for finding in e.findings[0]]


# Targets of other outputs


def test_similarity_finds_its_tensor_or_lists_the_available_lengths():
    net, x = segmentation(), random_images()
    with pytest.raises(BadTarget, match=r"5 values, but the model returned a tensor of shape \(3, 7\)"):
        saliency(curved(), x, Similarity(torch.ones(5)))
    with pytest.raises(BadTarget, match=r"7 values, but the model .* a dict with output\['out'\] \(3, 4, 12, 16\)"):
        saliency(net, x, Similarity(torch.ones(7)))

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = curved()

        def forward(self, x):
            return {"maps": x, "pooled": self.net(x)}

    inside = saliency(Pooled().eval(), x, Similarity(np.ones(7)))
    torch.testing.assert_close(inside, saliency(curved(), x, Similarity(torch.ones(7))))


def test_mask_scores_need_a_mask_of_the_outputs_size():
    net, x = segmentation(), random_images()
    for shape in ((13, 16), (1, 16), (12, 1)):
        with pytest.raises(BadTarget, match=r"output has \(12, 16\).*interpolate"):
            saliency(net, x, MaskScores(torch.ones(shape), 1))
    with pytest.raises(BadTarget, match=r"\[N, K, H, W\]"):
        saliency(curved(), x, MaskScores(torch.ones(12, 16), 1))
    for class_ in (-1, 99):
        with pytest.raises(BadTarget, match="0 to 3"):
            saliency(net, x, MaskScores(torch.ones(12, 16), class_))


def test_mask_scores_are_a_mean_for_any_weights_with_one_mask_per_image():
    net, x = segmentation(), random_images()
    out = net(x)["out"]
    faint = MaskScores(np.full((12, 16), 1e-3), 2)(net(x))
    torch.testing.assert_close(faint, out[:, 2].mean((1, 2)), check_dtype=False, rtol=1e-5, atol=1e-6)
    masks = torch.zeros(3, 12, 16, dtype=torch.bool)
    for i in range(3):
        masks[i, i : i + 4, 2 : 5 + i] = True
    torch.testing.assert_close(
        MaskScores(masks, 1)({"logits": out}), torch.stack([o[1][m].mean() for o, m in zip(out, masks, strict=True)])
    )
    together = occlusion(net, x, MaskScores(masks, 1), window=6, stride=6, batch_size=4)
    alone = [occlusion(net, x[i : i + 1], MaskScores(masks[i], 1), window=6, stride=6) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_box_scores_only_use_detections():
    target = BoxScores([[0, 0, 10, 10]], np.array([3]))
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)}
    one = {"boxes": torch.tensor([[0.0, 0, 10, 10]]), "labels": torch.tensor([3]), "scores": torch.tensor([0.9])}
    assert target([nothing, one]).tolist() == pytest.approx([0, 0.9])
    for output in (
        {"loss": torch.ones(1)},
        torch.ones(2, 5),
        [],
        [{"boxes": torch.ones(2, 4)}],
        [{**one, "labels": [3]}],
    ):
        with pytest.raises(BadTarget, match="BoxScores needs detections"):
            target(output)
    with pytest.raises(BadTarget, match="BoxScores"):
        saliency(curved(), random_images(), target)
