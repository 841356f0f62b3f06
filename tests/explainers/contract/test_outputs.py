"""Outputs that are not scores [N, K]: the refusal names a target function, and that function works."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from explainers import BadTarget, explain, grad_cam, occlusion, saliency
from explainers.outputs import describe_output

Pair = namedtuple("Pair", "classes features")


@dataclass
class Found:
    """A custom output class of a network."""

    features: Tensor
    count: int = 3


class Tower(nn.Module):
    """A convolution, followed by `make` of its maps [N, 6, h, w]."""

    def __init__(self, make):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, 2, 1)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 5)
        self.make = make

    def forward(self, x):
        return self.make(self, self.conv(x))

    def tokens(self, maps):
        return self.norm(maps.flatten(2).transpose(1, 2))

    def scores(self, maps):
        return self.head(maps.mean((2, 3)))


def tower(make) -> Tower:
    torch.manual_seed(0)
    return Tower(make).eval()


def bare() -> Tower:
    return tower(lambda net, maps: net.scores(maps))


def detections(maps: Tensor) -> list[dict[str, Tensor]]:
    boxes, labels = torch.rand(4, 4), torch.ones(4).long()
    return [{"boxes": boxes, "labels": labels, "scores": one.flatten()[:4].sigmoid()} for one in maps]


IMAGES = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(1))
OUTPUTS = {
    "features": lambda net, maps: maps,
    "deep features": lambda net, maps: maps.repeat(1, 40, 1, 1),
    "tokens": lambda net, maps: net.tokens(maps),
    "pyramid": lambda net, maps: [maps, maps[:, :, ::2, ::2]],
    "scores and aux": lambda net, maps: (net.scores(maps), maps),
    "aux first": lambda net, maps: (maps, net.scores(maps)),
    "segmentation": lambda net, maps: OrderedDict(out=maps, aux=maps[:, :, ::2]),
    "maps as logits": lambda net, maps: {"logits": maps},
    "detections": lambda net, maps: detections(maps),
    "one number": lambda net, maps: maps.mean((1, 2, 3)),
    "one cell": lambda net, maps: maps.mean((2, 3), keepdim=True),
    "named tuple": lambda net, maps: Pair(net.scores(maps), maps),
    "dataclass": lambda net, maps: Found(maps),
    "nested": lambda net, maps: {"a": [{"b": (maps, net.tokens(maps))}]},
    "clips": lambda net, maps: maps[:, None],
    "queries": lambda net, maps: {"pred_logits": net.tokens(maps), "pred_boxes": net.tokens(maps)[..., :4]},
    "loss and embedding": lambda net, maps: {"loss": maps.mean(), "image_embeds": maps.mean((2, 3))},
}


def named_function(message: str):
    """The target function in a refusal, which ends with it."""
    code = re.fullmatch(r".*(lambda output: .*)\.", message)
    assert code, message
    return eval(code[1], {"torch": torch})


@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
def test_the_function_in_the_refusal_works(make):
    net = tower(make)
    for count in (1, 2):
        with pytest.raises(BadTarget, match=r"not scores \[N, K\]") as refused:
            saliency(net, IMAGES[:count], 1)
        with pytest.raises(BadTarget):
            occlusion(net, IMAGES[:count], 1)
        result = saliency(net, IMAGES[:count], named_function(str(refused.value)))
        assert bool(result.abs().amax((1, 2, 3)).gt(0).all()), "the score must depend on each image"


def test_the_message_names_three_tensors_and_counts_the_others():
    words = r"OrderedDict with output\['out'\] \(1, 6, 5, 7\), output\['aux'\] \(1, 6, 3, 7\)"
    with pytest.raises(BadTarget, match=words):
        grad_cam(tower(OUTPUTS["segmentation"]), IMAGES[:1], 1, layer="conv")
    assert describe_output({name: torch.zeros(2) for name in "abcde"}).endswith(" and 2 more")
    assert "more" not in describe_output({name: torch.zeros(2) for name in "abc"})


def test_an_output_without_numbers_is_refused_with_a_message():
    for make in (lambda net, maps: None, lambda net, maps: [], lambda net, maps: maps.long()):
        with pytest.raises(BadTarget, match="forward="):
            saliency(tower(make), IMAGES, 1)


def test_logits_in_a_dict_or_as_an_attribute_are_scores():
    """As Hugging Face's classifiers return them: classes, scores and findings are those of the bare logits."""
    named = namedtuple("Output", "logits")
    for wrap in (named, lambda scores: {"logits": scores}):
        inside = tower(lambda net, maps, wrap=wrap: wrap(net.scores(maps)))
        a, b = (explain("grad_cam", net, IMAGES, layer="conv") for net in (inside, bare()))
        torch.testing.assert_close(a.map, b.map)
        torch.testing.assert_close(a.scores, b.scores)
        assert a.target == b.target
        torch.testing.assert_close(occlusion(inside, IMAGES, 2, window=5), occlusion(bare(), IMAGES, 2, window=5))


def test_outputs_of_transformers():
    """Its output classes are dicts with attributes, some of whose entries are None."""
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def refusal(net: nn.Module) -> str:
        with pytest.raises(BadTarget) as refused:
            saliency(net, IMAGES, 1)
        assert "['" not in str(refused.value), "their entries are attributes"
        return str(refused.value)

    for make in (
        lambda net, maps: outputs.SemanticSegmenterOutput(logits=maps),
        lambda net, maps: outputs.BaseModelOutput(net.tokens(maps), hidden_states=(maps, net.tokens(maps))),
    ):
        assert saliency(tower(make), IMAGES, named_function(refusal(tower(make)))).any()
    pooled = tower(lambda net, maps: outputs.BaseModelOutputWithPooling(net.tokens(maps), net.tokens(maps)[:, 0]))
    assert "lambda output: output.last_hidden_state.mean" in refusal(pooled)  # of every patch
    assert grad_cam(pooled, IMAGES, named_function(refusal(pooled)), layer="norm#0", relu=False).all()
    classifier = tower(lambda net, maps: outputs.ImageClassifierOutput(logits=net.scores(maps)))
    torch.testing.assert_close(saliency(classifier, IMAGES), saliency(bare(), IMAGES))


def test_maps_of_classes_and_features_get_different_functions():
    """A class is explained by its mean score, a feature by the strongest one."""
    classes = {"segmentation", "maps as logits", "features"}  # fewer channels than cells, by whatever name
    for name in ("segmentation", "maps as logits", "features", "deep features"):
        with pytest.raises(BadTarget) as refusal:
            saliency(tower(OUTPUTS[name]), IMAGES, 1)
        assert ("the mean score of class 0" in str(refusal.value)) == (name in classes), name
