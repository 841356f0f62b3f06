"""The sentences of a request, and their embeddings, which are kept as long as the network."""

from __future__ import annotations

import weakref

import torch

from explainers import Similarity
from saliscope import zoo
from saliscope.compute import network_calls
from saliscope.compute import text_messages as messages
from saliscope.compute.answers import CHANNEL, Settings
from saliscope.compute.request import LONGEST, Request
from saliscope.compute.results_cache import Recent
from saliscope.errors import Refused, told
from saliscope.zoo import text
from saliscope.zoo.text import Sentences

_vectors: weakref.WeakKeyDictionary[zoo.Model, Recent[torch.Tensor]] = weakref.WeakKeyDictionary()


def parse(request: Request) -> tuple[Sentences | None, str]:
    """Return the sentences of a request, or None and why they are missing or invalid."""
    of_other_model = request.lenient and CHANNEL.fullmatch(request.target)
    target = "" if of_other_model else request.target
    if len(target) > LONGEST:
        return None, messages.too_long(LONGEST)
    try:
        found = text.parse(target)
    except text.BadSentence as error:
        return None, f"{error}."
    return found, "" if found else messages.NO_SENTENCE


def target_of(settings: Settings) -> Similarity:
    """Return the similarity to the sentence of the request, or the difference of two.

    Errors   Refused for a sentence that cannot be embedded
    """
    assert settings.sentences is not None, "only for a request with a sentence"
    try:
        return text.target_of(_embed(settings), settings.sentences)
    except text.BadSentence as error:
        raise Refused(f"{error}.") from None


def target_of_one(settings: Settings, index: int) -> Similarity:
    """Return the similarity to one of the sentences of the request.

    Errors   as `target_of`
    """
    return Similarity(_embed(settings)[index])


def similarities(settings: Settings, output: torch.Tensor) -> torch.Tensor:
    """Return the cosine similarities [M] of an embedding of an image to those of the sentences; [0] without sentences.

    Errors   as `target_of`
    """
    return text.similarities(output[None], _embed(settings))[0] if settings.sentences else output[:0]


def _embed(settings: Settings) -> list[torch.Tensor]:
    known, vectors = _vectors.setdefault(settings.loaded.model, Recent()), []
    for sentence in settings.class_names:
        vector = known.get(sentence)
        if vector is None:
            try:
                vector = network_calls.embedding(settings.loaded.name, sentence)
            except text.BadSentence as error:
                raise Refused(f"{told(error)}.") from None
            known.put(sentence, vector)
        vectors.append(vector)
    return vectors
