"""Outputs that are not scores [N, K], and targets for them: by hand from the models' outputs."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import box_convert, box_iou

import explainers
from explainers import BadTarget, BoxScores, DetrDetections, MaskScores, Regression, YoloDetections, explain, saliency
from tests.support.nets import Written, settle

IMAGES = torch.rand(2, 3, 64, 48, generator=torch.Generator().manual_seed(0))
SIZE, WIDE = (64, 48), (64, 96)


class Named(NamedTuple):
    """An output of transformers, as far as targets read it."""

    logits: Tensor
    pred_boxes: Tensor | None = None


def seeded(forward: Any, **modules: nn.Module) -> Any:
    """A network of convolutions [K, 3, side, side] and linear layers, with the same weights in every test."""
    return settle(Written(forward, **modules))


def detr(boxes: bool = True) -> Any:
    """A box and four scores for each cell, as the DETR family returns them; Segformer returns only the scores."""

    def forward(self: Any, x: Tensor) -> Named:
        cells = self.body(x)
        if not boxes:
            return Named(cells)
        tokens = cells.flatten(2).mT
        return Named(3 * tokens[..., :4], (tokens[..., 4:] + torch.tensor([0.0, 0, -1, -1])).sigmoid())

    return seeded(forward, body=nn.Conv2d(3, 8, 16, 16))


def corners(boxes: Tensor) -> Tensor:
    return box_convert(boxes, "cxcywh", "xyxy")


def best_by_hand(box: Tensor, label: int, boxes: Tensor, scores: Tensor, least: float) -> Tensor:
    """One image: the largest product of overlap and score, among boxes that overlap enough."""
    overlaps = box_iou(box[None], boxes)[0]
    near = overlaps >= least
    return (overlaps * scores[:, label])[near].max() if near.any() else scores.sum() * 0


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_an_object_of_a_detr_by_hand(activation: str) -> None:
    net = detr()
    images = torch.nn.functional.pad(IMAGES, (0, 48))
    leaf = images.clone().requires_grad_()
    output = net(leaf)
    pixels = corners(output.pred_boxes) * torch.tensor([96.0, 64.0, 96.0, 64.0])
    scores = output.logits.softmax(-1)[..., :-1] if activation == "softmax" else output.logits.sigmoid()
    box, read = pixels[0, 0].detach() + 0.5, DetrDetections(WIDE, activation)
    by_hand = torch.stack([best_by_hand(box, 1, b, s, 0.1) for b, s in zip(pixels, scores, strict=True)])
    assert float(by_hand[0]) > 0
    (expected,) = torch.autograd.grad(by_hand.sum(), leaf)
    found = explain("saliency", net, images, BoxScores(box[None], [1], 0.1, read))
    torch.testing.assert_close(found.raw, expected, rtol=1e-3, atol=1e-6)
    assert [each["target_score"] for each in found.statistics] == pytest.approx(by_hand.tolist(), rel=1e-4)
    for target, words in (
        (None, r"read=DetrDetections\(size, activation\)"),
        (BoxScores(box[None], [1]), "DETR"),
        (BoxScores(box[None], [scores.shape[-1]], 0.0, read), "Class [34] does not exist"),
    ):
        with pytest.raises(BadTarget, match=words):
            saliency(net, images, target)


class Yolo(nn.Module):
    """Six boxes of fixed places and three classes, in one of the layouts of YOLO."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layout, self.body = layout, nn.Conv2d(3, 8, 16, 16)
        self.boxes = nn.Parameter(torch.rand(6, 4) * 12 + torch.tensor([16.0, 24.0, 16.0, 16.0]))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.body(x).flatten(2)[..., :6].mT.sigmoid()
        return self.boxes + seen[..., 4:], seen[..., 3:4], seen[..., :3]

    def forward(self, x: Tensor) -> Any:
        boxes, objectness, classes = self.parts(x)
        if self.layout == "v8":
            return torch.cat([boxes, classes], 2).mT, ["features"]
        if self.layout == "v5":
            return torch.cat([boxes, objectness, classes], 2)
        best = classes.max(2, keepdim=True)
        return torch.cat([corners(boxes), best.values, best.indices.to(boxes)], 2)


@pytest.mark.parametrize("layout", ["v5", "v8", "v10"])
def test_an_object_of_a_yolo_by_hand(layout: str) -> None:
    net = Yolo(layout).eval()
    box = corners(net.boxes[2]).detach() + 1
    leaf = IMAGES.clone().requires_grad_()
    boxes, objectness, classes = net.parts(leaf)
    label = int(classes[0, 2].argmax())
    if layout == "v10":  # as for torchvision, the best overlap among boxes of this class
        by_hand = []
        for b, s in zip(corners(boxes), classes, strict=True):
            mine = s.argmax(1) == label
            overlaps = box_iou(box[None], b[mine])[0] if mine.any() else torch.zeros(1)
            best = int(overlaps.argmax())
            by_hand.append(overlaps[best] * s[mine][best].max() if overlaps[best] >= 0.3 else s.sum() * 0)
    else:
        scores = objectness * classes if layout == "v5" else classes
        by_hand = [best_by_hand(box, label, b, s, 0.3) for b, s in zip(corners(boxes), scores, strict=True)]
    (expected,) = torch.autograd.grad(torch.stack(by_hand).sum(), leaf)

    found = saliency(net, IMAGES, BoxScores(box[None], [label], 0.3, YoloDetections(layout)))

    assert expected.any()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_wrong_readers_are_refused() -> None:
    box = torch.tensor([[0.0, 0, 8, 8]])
    for read, words in (
        (YoloDetections("v10"), r"does not fit layout='v10'"),
        (DetrDetections(SIZE, "sigmoid"), r"not logits \[N, M, K\] and pred_boxes"),
        (lambda output: output, "read returned a tensor"),
    ):
        with pytest.raises(BadTarget, match=words):
            saliency(Yolo("v5").eval(), IMAGES, BoxScores(box, [0], read=read))
    wrong: Any = ((DetrDetections, ((64,), "softmax")), (DetrDetections, (SIZE, "relu")), (YoloDetections, ("v99",)))
    for make, given in (*wrong, (Regression, (None, -1)), (Regression, (None, None, torch.zeros(3, 3)))):
        with pytest.raises(BadTarget):
            make(*given)


class Queries(NamedTuple):
    """The parts of Mask2Former's output that the target reads."""

    class_queries_logits: Tensor
    masks_queries_logits: Tensor


def mask2former(self: Any, x: Tensor) -> Queries:
    return Queries(self.classes(x.mean((2, 3))).unflatten(1, (5, 4)), self.masks(x))


def test_masks_of_queries_and_of_segformer_by_hand() -> None:
    leaf = IMAGES.clone().requires_grad_()
    net = seeded(mask2former, classes=nn.Linear(3, 5 * 4), masks=nn.Conv2d(3, 5, 8, 8))
    classes, masks = net(leaf)
    maps = torch.einsum("nq,nqhw->nhw", classes.softmax(-1)[..., 1], masks.sigmoid())
    mask, small = torch.zeros(8, 6), torch.zeros(4, 3)
    mask[2:5, 1:3] = small[1:3, :2] = 1
    (expected,) = torch.autograd.grad((maps * mask).sum() / mask.sum(), leaf)
    torch.testing.assert_close(saliency(net, IMAGES, MaskScores(mask, 1)), expected, rtol=1e-4, atol=1e-8)
    for target, words in (
        (MaskScores(mask, 3), "Class 3 .* returns 3 scores"),
        (1, r"give MaskScores\(mask, class_\)"),
    ):
        with pytest.raises(BadTarget, match=words):
            saliency(net, IMAGES, target)
    net = detr(boxes=False)
    (expected,) = torch.autograd.grad((net(leaf).logits[:, 2] * small).sum() / small.sum(), leaf)
    torch.testing.assert_close(saliency(net, IMAGES, MaskScores(small, 2)), expected, rtol=1e-3, atol=1e-6)


class Depth(NamedTuple):
    predicted_depth: Tensor
    features: Tensor


def test_measured_values_by_hand() -> None:
    leaf = IMAGES.clone().requires_grad_()
    masks = torch.rand(2, 8, 6)
    depth, pose, counts = (
        seeded(forward, body=nn.Conv2d(3, 8, 8, 8))
        for forward in (
            lambda self, x: Depth(self.body(x)[:, 0], self.body(x)),
            lambda self, x: self.body(x).mean((2, 3)).unflatten(1, (4, 2)),
            lambda self, x: self.body(x).mean((2, 3))[:, :3].exp(),
        )
    )
    for net, target, score in (
        (depth, Regression("predicted_depth", unit="m"), lambda o: o.predicted_depth.mean((1, 2))),
        (depth, Regression("predicted_depth", mask=masks[0]), lambda o: (o[0] * masks[0]).sum((1, 2)) / masks[0].sum()),
        (depth, Regression("predicted_depth", mask=masks), lambda o: (o[0] * masks).sum((1, 2)) / masks.sum((1, 2))),
        (depth, Regression("features", 3, masks[0]), lambda o: (o[1][:, 3] * masks[0]).sum((1, 2)) / masks[0].sum()),
        (pose, Regression(index=(2, 1), unit="px"), lambda o: o[:, 2, 1]),
        (pose, Regression(index=2), lambda o: o[:, 2].mean(1)),
        (counts, Regression(index=1), lambda o: o[:, 1]),
    ):
        (expected,) = torch.autograd.grad(score(net(leaf)).sum(), leaf)
        torch.testing.assert_close(saliency(net, IMAGES, target), expected, rtol=1e-4, atol=1e-7)
        alone = explainers.occlusion(net, IMAGES[1:], target.rows([1]), window=16, stride=16)
        torch.testing.assert_close(explainers.occlusion(net, IMAGES, target, window=16, stride=16)[1:], alone)
    for net, target, words in (
        (depth, None, r"give Regression\('predicted_depth'\).*output.predicted_depth.flatten\(1\)"),
        (depth, Regression(), "not one tensor"),
        (depth, Regression("depth"), "not a tensor 'depth'"),
        (counts, Regression(index=3), "does not exist"),
        (depth, Regression("predicted_depth", mask=torch.ones(3, 3)), r"mask has size \(3, 3\)"),
        (depth, Regression("predicted_depth", mask=torch.ones(3, 8, 6)), "3 masks were given for 2 images"),
    ):
        with pytest.raises(BadTarget, match=words):
            saliency(net, IMAGES, target)
    described = explain("saliency", depth, IMAGES, Regression("predicted_depth", unit="m")).target
    assert described == "Regression('predicted_depth', unit='m')"


# Outputs that are not scores [N, K]: the refusal names a target function, and that function works


Pair = namedtuple("Pair", "classes features")


@dataclass
class Found:
    """A custom output class of a network."""

    features: Tensor
    count: int = 3


def tokens(net: Any, maps: Tensor) -> Tensor:
    return net.norm(maps.flatten(2).transpose(1, 2))


def scores(net: Any, maps: Tensor) -> Tensor:
    return net.head(maps.mean((2, 3)))


def tower(make) -> nn.Module:
    """A convolution, followed by `make` of its maps [N, 6, h, w]."""
    parts = {"conv": nn.Conv2d(3, 6, 3, 2, 1), "norm": nn.LayerNorm(6), "head": nn.Linear(6, 5)}
    return seeded(lambda net, x: make(net, net.conv(x)), **parts)


def detections(maps: Tensor) -> list[dict[str, Tensor]]:
    boxes, labels = torch.rand(4, 4), torch.ones(4).long()
    return [{"boxes": boxes, "labels": labels, "scores": one.flatten()[:4].sigmoid()} for one in maps]


WIDE_IMAGES = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(1))
OUTPUTS = {
    "features": lambda net, maps: maps,
    "deep features": lambda net, maps: maps.repeat(1, 40, 1, 1),
    "tokens": tokens,
    "pyramid": lambda net, maps: [maps, maps[:, :, ::2, ::2]],
    "scores and aux": lambda net, maps: (scores(net, maps), maps),
    "aux first": lambda net, maps: (maps, scores(net, maps)),
    "segmentation": lambda net, maps: OrderedDict(out=maps, aux=maps[:, :, ::2]),
    "maps as logits": lambda net, maps: {"logits": maps},
    "detections": lambda net, maps: detections(maps),
    "one number": lambda net, maps: maps.mean((1, 2, 3)),
    "one cell": lambda net, maps: maps.mean((2, 3), keepdim=True),
    "named tuple": lambda net, maps: Pair(scores(net, maps), maps),
    "dataclass": lambda net, maps: Found(maps),
    "nested": lambda net, maps: {"a": [{"b": (maps, tokens(net, maps))}]},
    "clips": lambda net, maps: maps[:, None],
    "queries": lambda net, maps: {"pred_logits": tokens(net, maps), "pred_boxes": tokens(net, maps)[..., :4]},
    "loss and embedding": lambda net, maps: {"loss": maps.mean(), "image_embeds": maps.mean((2, 3))},
}


def named_function(message: str):
    """The target function in a refusal, which ends with it."""
    code = re.fullmatch(r".*(lambda output: .*)\.", message)
    assert code, message
    return eval(code[1], {"torch": torch})


CLASS_MAPS, FEATURES = ("features", "segmentation", "maps as logits"), ("deep features", "pyramid", "dataclass")
"""What outputs [N, K, h, w] are, by their name and number of channels."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_function_in_the_refusal_works(name):
    net = tower(OUTPUTS[name])
    suggested = "mean score of class 0" if name in CLASS_MAPS else "over all positions" if name in FEATURES else ""
    for count in (1, 2):
        with pytest.raises(BadTarget, match=rf"not scores \[N, K\].*{suggested}") as refused:
            saliency(net, WIDE_IMAGES[:count], 1)
        with pytest.raises(BadTarget):
            explainers.occlusion(net, WIDE_IMAGES[:count], 1)
        result = saliency(net, WIDE_IMAGES[:count], named_function(str(refused.value)))
        assert bool(result.abs().amax((1, 2, 3)).gt(0).all()), "the score must depend on each image"


def test_an_output_without_numbers_is_refused_with_a_message():
    for make in (lambda net, maps: None, lambda net, maps: [], lambda net, maps: maps.long()):
        with pytest.raises(BadTarget, match="forward="):
            saliency(tower(make), WIDE_IMAGES, 1)
