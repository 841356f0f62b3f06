"""Labels and messages of sentences as targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saliscope.percentages import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saliscope.zoo.text import Sentences

FIELD = {
    "group": "Sentences",
    "title": "Text",
    "example": "for example, a photo of a dog",
    "against": "Compared with",
    "optional": "optional; for example, a photo of a cat",
}
"""Labels used by page/text/sentences.js."""
SIMILARITIES = "Cosine similarities"
"""The title of the list of sentences."""
NO_SENTENCE = (
    "No sentence given. This model compares images with sentences, so its target is a sentence, such as “a photo of a "
    "dog”. Enter one under Text."
)
NO_SECOND_SENTENCE = "The second sentence is missing. Enter one under Compared with."
NO_TEXT_ENCODER = " This model has no text encoder, so its target cannot be a sentence."
ONE_SENTENCE = "Not compared with another sentence. Enter a second one under Compared with."
TWO_SENTENCES = "Not tested: the map already shows the difference between two sentences."


def too_long(most: int) -> str:
    """Return the message for a target with too many characters."""
    return f"The sentences are longer than {most} characters in total. Shorten them."


def quoted(sentences: Sentences) -> str:
    """Return the target in words."""
    against = f" compared with “{sentences.against}”" if sentences.against else ""
    return f"“{sentences.own}”{against}"


def similarity(values: Sequence[float]) -> str:
    """Return the cosine similarities to one or two sentences in words."""
    return f"similarity {' and '.join(map(number, values))}"
