"""Sentences as targets: CLIP and SigLIP of transformers and open_clip, by hand from their own embeddings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import BadTarget, Similarity, UnsupportedModel, explain, saliency, text_embedding
from tests.support.two_encoders import TwoEncoders

TOKENS = torch.tensor([[1, 5, 9, 2], [1, 7, 3, 2], [1, 4, 4, 2]])
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@functools.cache
def hugging_face(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    vision = {**SIZES, "image_size": 32, "patch_size": 8}
    words = {**SIZES, "vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 2}
    own = {"projection_dim": 12} if kind == "CLIP" else {}
    config = getattr(transformers, f"{kind}Config")(vision_config=vision, text_config=words, **own)
    net: nn.Module = getattr(transformers, f"{kind}Model")(config).eval()
    return net


def dual() -> nn.Module:
    return TwoEncoders().eval()


def vectors(net: Any, given: Tensor, kind: str) -> Tensor:
    """The features of images or of sentences (`kind` is image or text), before they are normalized."""
    if isinstance(net, TwoEncoders):
        return getattr(net, f"encode_{kind}")(given)  # type: ignore[no-any-return]
    found = getattr(net, f"get_{kind}_features")(given)
    return found if isinstance(found, Tensor) else found.pooler_output  # type: ignore[no-any-return]


NETS: dict[str, Callable[[], nn.Module]] = {
    "open_clip's names": dual,
    "CLIP": functools.partial(hugging_face, "CLIP"),
    "Siglip": functools.partial(hugging_face, "Siglip"),
}


@pytest.mark.parametrize("kind", NETS)
def test_similarity_to_a_sentence_and_contrast_of_sentences(kind: str) -> None:
    """Oracle: autograd through the two encoders and the cosines written out."""
    net: Any = NETS[kind]()
    encode = net.encode_image if kind == "open_clip's names" else net.get_image_features
    sentences = text_embedding(net, TOKENS)
    torch.testing.assert_close(sentences, nn.functional.normalize(vectors(net, TOKENS, "text").detach(), dim=1))

    leaf = IMAGES.clone().requires_grad_()
    cosines = nn.functional.normalize(vectors(net, leaf, "image"), dim=1) @ sentences.T
    for target, score in (
        (Similarity(sentences[1]), cosines[:, 1]),
        (Similarity(sentences[0], against=sentences[1]), cosines[:, 0] - cosines[:, 1]),
        (Similarity(sentences[0], against=sentences[1:]), cosines[:, 0] - cosines[:, 1:].mean(1)),
        (Similarity(sentences[:2], against=sentences[2]), cosines.diagonal() - cosines[:, 2]),
    ):
        (expected,) = torch.autograd.grad(score.sum(), leaf, retain_graph=True)
        found = explain("saliency", net, IMAGES, target, forward=encode)
        torch.testing.assert_close(found.raw, expected, rtol=1e-4, atol=1e-7)
        assert [each["target_score"] for each in found.statistics] == pytest.approx(score.tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_scores_of_several_sentences_are_classes(kind: str) -> None:
    net: Any = hugging_face(kind)

    def run(images: Tensor) -> Any:
        return net(pixel_values=images, input_ids=TOKENS)

    leaf = IMAGES.clone().requires_grad_()
    scores = run(leaf).logits_per_image
    (expected,) = torch.autograd.grad((scores[:, 1] - scores[:, 0]).sum(), leaf)
    found = explain("saliency", net, IMAGES, explainers.Contrast(1, 0), forward=run)
    torch.testing.assert_close(found.raw, expected, rtol=1e-4, atol=1e-6)
    assert found.scores is not None
    torch.testing.assert_close(found.scores, scores.detach())
    assert explain("saliency", net, IMAGES, forward=run).target == scores.argmax(1).tolist()
    target = Similarity(text_embedding(net, TOKENS)[0])
    by_name, by_vector = (saliency(net, IMAGES, target, forward=each) for each in (run, net.get_image_features))
    torch.testing.assert_close(by_name, by_vector, rtol=1e-4, atol=1e-7)


def test_an_embedding_has_no_probabilities() -> None:
    """Its values are not scores of classes, between which the network could have no preference."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    found = explain("saliency", net, IMAGES, Similarity(torch.arange(8.0)))
    assert found.probabilities is None
    assert "no_preference" not in {verdict.code for verdict in found.verdicts}


def loosened(q: Tensor, k: Tensor) -> Tensor:
    """Similarities of queries and keys, stretched to [0, 1]."""
    cosine = torch.cosine_similarity(q, k, dim=-1)
    low, high = cosine.amin(1, keepdim=True), cosine.amax(1, keepdim=True)
    return (cosine - low) / (high - low)


def test_grad_eclip_of_attention_pooling_uses_the_queries_of_the_pooling() -> None:
    """SigLIP pools its patches by one query; the gradient is that of its output, the input of the last projection."""
    net: Any = hugging_face("Siglip")
    target, head, kept = Similarity(text_embedding(net, TOKENS)[0]), net.vision_model.head, {}
    with head.attention.register_forward_pre_hook(lambda _, args, kw: kept.update(a=args, kw=kw), with_kwargs=True):
        net.get_image_features(IMAGES)
    query, tokens, *_ = (*kept["a"], *kept["kw"].values())
    matrices, biases = head.attention.in_proj_weight.chunk(3), head.attention.in_proj_bias.chunk(3)
    q, k, v = (x @ m.T + b for x, m, b in zip((query, tokens, tokens), matrices, biases, strict=True))
    heads = [slice(0, 8), slice(8, 16)]
    mixed = torch.cat([(q[..., h] @ k[..., h].mT / 8**0.5).softmax(-1) @ v[..., h] for h in heads], -1).detach()
    mixed.requires_grad_()
    after = head.attention.out_proj(mixed)
    (g,) = torch.autograd.grad(target((after + head.mlp(head.layernorm(after)))[:, 0]).sum(), mixed)
    expected = ((g * v).sum(-1) * loosened(q, k)).relu().view(2, 4, 4).detach()
    assert expected.amax() > 0
    found = explainers.grad_eclip(net, IMAGES, target, forward=net.get_image_features)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-8)


def test_dicts_of_a_tokenizer_and_models_in_training_mode() -> None:
    net: Any = hugging_face("CLIP")
    tokens = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    torch.testing.assert_close(text_embedding(net, tokens), text_embedding(net, TOKENS))
    training = TwoEncoders().train()
    training.words = nn.Sequential(training.words, nn.Dropout(0.5))
    first = text_embedding(training, TOKENS)
    assert torch.equal(first, text_embedding(training, TOKENS)) and training.training and not first.requires_grad


def test_wrong_uses() -> None:
    with pytest.raises(UnsupportedModel, match="has no text encoder"):
        text_embedding(nn.Linear(3, 3), TOKENS)
    with pytest.raises(BadTarget, match="tokens is a list"):
        text_embedding(dual(), ["a cat"])  # type: ignore[arg-type]
    for against, words in ((torch.ones(3), "3 values, but embedding has 8"), (torch.zeros(8), "has a row of zeros")):
        with pytest.raises(BadTarget, match=words):
            Similarity(torch.ones(8), against=against)


def test_the_message_for_an_embedding_names_similarity() -> None:
    """A pair of features without `logits_per_image`."""
    net: Any = dual()

    def pair(images: Tensor) -> dict[str, Tensor]:
        return {"image_features": net.encode_image(images)}

    with pytest.raises(BadTarget, match=r"'image_features', give Similarity.*text_embedding\(model, tokens\)"):
        saliency(net, IMAGES, forward=pair)
    assert saliency(net, IMAGES, Similarity(text_embedding(net, TOKENS)[0]), forward=pair).any()
