"""The sentences that a run explains, for networks with a text encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from explainers import Similarity
from saliscope.errors import Refused
from saliscope.runs.settings import LABEL, PREDICTED, WRONG, Settings
from saliscope.zoo import Model, text
from saliscope.zoo.text import Sentences


def find_sentences(settings: Settings, model: Model) -> Sentences | None:
    """Return the sentences in the target of a run, or None for a network with classes.

    Errors   Refused for a target or a filter that needs classes, and for more than two sentences
    """
    if model.tokenize is None:
        return None
    why = f"{model.name} compares images with sentences and has no classes."
    if settings.where == WRONG:
        raise Refused(f"The filter wrong needs classes, but {why} Omit it.")
    if settings.target in (PREDICTED, LABEL):
        raise Refused(f'{why} Use a sentence as the target, "a photo of a dog", or two: "a photo of a dog | a cat".')
    with _refuse_bad_sentences():
        found = text.parse(settings.target)
    if found is None:
        raise Refused('The target is empty. Use a sentence, such as "a photo of a dog".')
    return found


def embed(model: Model, sentences: Sentences) -> tuple[list[Tensor], Similarity]:
    """Return the embeddings of the sentences, and the target for them.

    Errors   Refused for a sentence that the text encoder cannot embed, and for two with the same embedding
    """
    with _refuse_bad_sentences():
        vectors = [text.embedding(model, sentence) for sentence in sentences.listed]
        return vectors, text.target_of(vectors, sentences)


@contextmanager
def _refuse_bad_sentences() -> Iterator[None]:
    try:
        yield
    except text.BadSentence as error:
        raise Refused(f"{error}.") from None
