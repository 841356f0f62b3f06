"""Words as labels of images, chosen by an encoder: of images and text, or of text only, which reads the labels."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from explainers import text_embedding
from saliscope import zoo
from saliscope.errors import Refused
from saliscope.runs.decoding import Decode, decode_batches
from saliscope.runs.formats import plural
from saliscope.runs.items import Item
from saliscope.runs.settings import Classes
from saliscope.zoo import Model, ModelUnavailable, devices, text
from saliscope.zoo.sources import hub
from saliscope.zoo.sources.hf_models import SentenceEncoder, load_sentence_encoder
from saliscope.zoo.weights import weights_hash

PROMPT = "a photo of a {}"
"""The sentence of a word for an encoder of images, whose training data are captions (Radford et al. 2021)."""
CLEAR = 0.5
"""The probability above which an image has a word: the encoder prefers it to all other words together."""
SCALE, SENTENCE_SCALE = 100.0, 20.0
"""Factors from similarities to the logits of that probability: that of CLIP, if the encoder has not learned its own,
and that with which sentence encoders are trained (Reimers and Gurevych 2019, and its library).
"""
NONE = -1
"""Instead of the number of a word, for an image that clearly has none of them."""
EXAMPLE = "hf:openai/clip-vit-base-patch32"


@dataclass(frozen=True)
class Labeler:
    """An encoder that chooses the words of images, with the embeddings `vectors` [M, D] of the words.

    The words of an image exclude each other, so its word is the most probable one by a softmax over all words, as in
    the training of the encoder. An image without a word above `CLEAR` is not used, like one without a label.
    """

    words: list[str]
    vectors: Tensor
    model: Model
    title: str

    @property
    def reads_images(self) -> bool:
        """Whether the encoder reads images, and not only their labels."""
        return not isinstance(self.model.network, SentenceEncoder)

    def record(self) -> dict[str, Any]:
        """Return what the names depend on, for the settings of an index."""
        digest = hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]
        return {
            "names_by": self.title,
            "words": f"{len(self.words)} words ({digest})",
            "encoder": self.model.name,
            "encoder_sha256": weights_hash(self.model),
        }

    def label(
        self, items: Sequence[Item], classes: Sequence[str], decode: Decode, workers: int, device: str, batch: int
    ) -> Iterator[list[int]]:
        """Yield the numbers of the words of images in batches, `NONE` without a clear or a readable one."""
        parts = [items[start : start + batch] for start in range(0, len(items), batch)]
        if not self.reads_images:
            known = Classes(classes)
            for part in parts:
                yield self._of_labels([item.label for item in part], known)
            return
        place = devices.choose(device)
        network = self.model.network.to(place)
        for read in decode_batches(parts, decode, self.model.preparation, workers):
            words = [NONE] * len(read.items)
            if len(read.images):
                with torch.no_grad():
                    found = self._choose(network(devices.move(read.images, place)))
                for k, word in zip(read.places, found, strict=True):
                    words[k] = word
            yield words

    def _of_labels(self, labels: Sequence[str | None], known: Classes) -> list[int]:
        """Return the words of images by their labels, as the names of classes if they are classes of the network."""
        names = {label: label if (at := known.find(label)) is None else known.name(at) for label in {*labels} - {None}}
        if not names:
            return [NONE] * len(labels)
        assert self.model.tokenize is not None, "checked by open_labeler"
        embeddings = text_embedding(self.model.network, self.model.tokenize([str(name) for name in names.values()]))
        words = dict(zip(names, self._choose(embeddings), strict=True))
        return [words.get(label, NONE) for label in labels]

    def _choose(self, embeddings: Tensor) -> list[int]:
        learned = (each for name, each in self.model.network.named_parameters() if name.endswith("logit_scale"))
        scale = next((float(each.exp()) for each in learned), SCALE if self.reads_images else SENTENCE_SCALE)
        scores = scale * normalize(embeddings.float(), dim=1) @ self.vectors.to(embeddings.device).T
        share, word = scores.softmax(1).max(1)
        return word.where(share > CLEAR, NONE).tolist()


def open_labeler(words: str | Path | Sequence[str], encoder: str | Model) -> Labeler:
    """Return the labeler with the words of a file, or with these words, and an encoder by its name.

    Errors   Refused; zoo.ModelUnavailable
    """
    if not encoder or not words:
        given, other = ("--words", "--encoder") if words else ("--encoder", "--words")
        raise Refused(
            f"{given} needs {other}, because an encoder decides which images show a word. Add "
            + (f"an encoder of images and text: --encoder {EXAMPLE}." if words else "a file with one word per line.")
        )
    name, found = _read_words(words)
    model = encoder if isinstance(encoder, Model) else _load(encoder)
    if model.tokenize is None:
        raise Refused(f"{model.name} has no text encoder to compare images with words. Use one like {EXAMPLE}.")
    prompt = "{}" if isinstance(model.network, SentenceEncoder) else PROMPT
    try:
        vectors = torch.stack([text.embedding(model, prompt.format(word)) for word in found])
    except text.BadSentence as error:
        raise Refused(f"{error}.") from None
    first: dict[int, str] = {}
    for word, at in zip(found, vectors.unique(dim=0, return_inverse=True)[1].tolist(), strict=True):
        if first.setdefault(at, word) != word:
            raise Refused(
                f"{model.name} has the same embedding for {first[at]!r} and {word!r}, because it does not know one of "
                "them or both. Remove one."
            )
    return Labeler(found, vectors, model, f"{name} and {Path(model.name).name.removeprefix('hf:')}")


def _read_words(words: str | Path | Sequence[str]) -> tuple[str, list[str]]:
    """Return the title of words, and the words with single spaces, without empty lines.

    Errors   Refused
    """
    where = repr(str(words)) if isinstance(words, (str, Path)) else "The list of words"
    try:
        lines = Path(words).read_text(encoding="utf-8-sig").splitlines() if isinstance(words, (str, Path)) else words
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise Refused(f"Cannot read {where}: {why}. Pass a text file with one word per line.") from None
    found = [word for line in lines if (word := " ".join(str(line).split()))]
    if len(found) < 2:
        raise Refused(
            f"{where} has {plural(len(found), 'word')}, but an encoder chooses among at least two. Add words for what "
            "the other images show."
        )
    seen = set[str]()
    for word in found:
        if word.casefold() in seen:
            raise Refused(f"{where} has {word!r} twice, so neither is more probable. Remove one.")
        seen.add(word.casefold())
    return Path(words).name if isinstance(words, (str, Path)) else plural(len(found), "word"), found


def _load(encoder: str) -> Model:
    """Return an encoder by its name.

    Errors   ModelUnavailable
    """
    if encoder.startswith("hf:") and importlib.util.find_spec("transformers") is None:
        raise ModelUnavailable(hub.missing("transformers", "text"))
    return load_sentence_encoder(encoder) or zoo.load_model(encoder)
