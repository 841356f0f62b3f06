"""Sentences as targets: networks with an image and a text encoder, such as CLIP and SigLIP.

A target is "a photo of a dog", or "a photo of a dog | a photo of a cat" for the difference of two similarities.

    BadSentence(ValueError)    what is wrong with a sentence, and what to do
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explainers import Similarity, text_embedding
from saliscope.zoo.model import Model, Tokenize

BAR = " | "
"""Separates the explained sentence from a second one for comparison."""
MORE = " dog"
"""A word that is appended to find out whether the tokenizer reads the end of a sentence."""

EMBEDDINGS = ("image_embeds", "image_features", "pooler_output")
"""Names of an image's embedding in an output with several tensors."""


class BadSentence(ValueError):
    """A sentence that the text encoder cannot embed."""


@dataclass(frozen=True)
class Sentences:
    """The explained sentence, and the sentence that it is compared with (may be empty)."""

    own: str
    against: str = ""

    @property
    def name(self) -> str:
        """The target of a request: "a photo of a dog", "a photo of a dog | a photo of a cat"."""
        return f"{self.own}{BAR}{self.against}" if self.against else self.own

    @property
    def listed(self) -> list[str]:
        """The explained sentence, and the other one if there is one."""
        return [self.own, *([self.against] if self.against else [])]


def parse(target: str) -> Sentences | None:
    """Return the sentences of a target, with single spaces; None for an empty target.

    Errors   BadSentence
    """
    parts = [" ".join(part.split()) for part in re.split(r"(?:^|\s)\|(?=\s|$)", target)]
    if len(parts) > 2:
        raise BadSentence("The target has more than two sentences. Enter one, or two to compare them")
    if not any(parts):
        return None
    if not parts[0]:
        raise BadSentence("The sentence to explain is empty. Enter it, or clear the other sentence")
    return Sentences(*parts)


class ImageEncoder(nn.Module):
    """A network with two encoders as a network from images to their embeddings [N, D]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        """Return the embeddings of images."""
        model: Any = self.model
        output = model.encode_image(images) if hasattr(model, "encode_image") else model.get_image_features(images)
        if isinstance(output, Tensor):
            return output
        found = (output.get(name) if isinstance(output, dict) else getattr(output, name, None) for name in EMBEDDINGS)
        return next((each for each in found if each is not None), None)

    def get_text_features(self, **tokens: Any) -> Any:
        """Return the embeddings of tokens, as `explainers.text_embedding` calls it."""
        model: Any = self.model
        if hasattr(model, "get_text_features"):
            return model.get_text_features(**tokens)
        return model.encode_text(tokens["input_ids"])


def image_encoder(network: nn.Module) -> nn.Module:
    """Return the network as one from images to embeddings; a network without `encode_image` is one already."""
    names = ("encode_image", "get_image_features")
    return ImageEncoder(network) if any(hasattr(network, name) for name in names) else network


def with_tokenizer(result: Any) -> tuple[Any, Tokenize | None]:
    """Return what a user's function built, and its tokenizer if it returned a pair."""
    is_pair = isinstance(result, tuple) and len(result) == 2 and callable(result[1])
    return result if is_pair else (result, None)


def embedding(model: Model, sentence: str) -> Tensor:
    """Return the embedding [D] of a sentence, of length 1, on the CPU.

    Errors   BadSentence if the tokenizer refuses it, or would ignore its end
    """
    sentence = " ".join(sentence.split())
    tokens = _tokens(model, sentence)
    if _is_cut(model, sentence, tokens):
        raise BadSentence(
            f"The tokenizer of {model.name} ignores the end of “{_short(sentence)}”, because the sentence is too long "
            "for the text encoder or its last word is unknown. Shorten or change it"
        )
    try:
        return text_embedding(model.network, tokens)[0].cpu()
    except Exception as error:  # the user's own network
        raise BadSentence(
            f"The text encoder of {model.name} fails for “{_short(sentence)}”: {_reason(error)}"
        ) from error


def target(model: Model, sentences: Sentences) -> Similarity:
    """Return the similarity to a sentence, or the difference of the similarities to two sentences.

    Errors   BadSentence
    """
    return target_of([embedding(model, sentence) for sentence in sentences.listed], sentences)


def target_of(vectors: list[Tensor], sentences: Sentences) -> Similarity:
    """Return the target for the embeddings of the sentences.

    Errors   BadSentence for two sentences with the same embedding
    """
    if len(vectors) == 1:
        return Similarity(vectors[0])
    if torch.allclose(vectors[0], vectors[1], rtol=0, atol=1e-6):
        raise BadSentence(
            f"“{_short(sentences.own)}” and “{_short(sentences.against)}” have the same embedding, so their difference "
            "is 0 everywhere. Change one of them"
        )
    return Similarity(vectors[0], against=vectors[1])


def similarities(output: Tensor, vectors: list[Tensor]) -> Tensor:
    """Return the cosine similarities [N, M] of embeddings of images [N, D] to those of sentences."""
    return torch.stack([Similarity(vector)(output.float()) for vector in vectors], 1)


def _tokens(model: Model, sentence: str) -> dict[str, Tensor]:
    """Return the tokens of a sentence on the device of the network.

    Errors   BadSentence
    """
    assert model.tokenize is not None, "only for networks with a text encoder"
    device = next((tensor.device for tensor in model.network.parameters()), None)
    try:
        found = model.tokenize([sentence])
        pairs = found.items() if isinstance(found, Mapping) else [("input_ids", found)]
        return {name: torch.as_tensor(value).to(device) for name, value in pairs}
    except Exception as error:  # the user's own tokenizer
        raise BadSentence(f"The tokenizer of {model.name} fails for “{_short(sentence)}”: {_reason(error)}") from error


def _is_cut(model: Model, sentence: str, tokens: dict[str, Tensor]) -> bool:
    """Return whether the tokens are the same with one more word and without the last one."""
    try:
        longer = _tokens(model, sentence + MORE)
    except BadSentence:  # the tokenizer refuses long sentences instead of cutting them
        return False
    before, _, _ = sentence.rpartition(" ")
    return _same(tokens, longer) and _same(tokens, _tokens(model, before or sentence[: len(sentence) // 2]))


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:150]


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 60 else sentence[:59] + "…"
