"""docs/glossary.md is made from the glossary of the page. `python -m tests.project.test_glossary` writes it again."""

from __future__ import annotations

from pathlib import Path

from saliscope.page.panel.messages import CROP
from saliscope.page.shared.glossary import GLOSSARY

DOCUMENT = Path(__file__).parents[2] / "docs" / "glossary.md"
ASKED = ["logit", "layer", "contribution", "% of the map", "brightest % of the map", "gradient norm", "crop"]
VERDICTS = ["random maps", "edge maps", "centered blob", "depends on the class", "depends on the weights", "evidence"]
LIBRARY = {
    "attribution": "A number for each value of the image: how much it adds to the score, in the unit of the score.",
    "class-activation map (CAM)": "A map of a layer: the weighted sum of its channels.",
    "control": "A map that does not use the network, with which a map is compared. See controls.",
    "finding": "A warning about a map with a code, a sentence and a remedy, such as `saturated`.",
    "map": "A number for each cell or pixel of an image that says where the score depends on it.",
    "perturbation": "A change of the image, such as a covered window, after which the score is measured.",
    "placement": "Where the cells of a layer lie in the image, if they do not cover it evenly.",
    "saliency": "The gradient of the score: how it reacts to a small change of each value.",
    "significance": "A difference is significant if equally good maps would rarely differ as much by chance: p < 0.05, "
    "corrected for the number of comparisons (Holm).",
    "target": "What is explained: a class, an object, a sentence, a unit, or a function of the output.",
    "verdict": "One sentence about what the numbers about a map support.",
}
"""Words of the documents that the page does not explain."""


def rows(words: dict[str, str]) -> list[str]:
    entries = sorted(words.items(), key=lambda item: item[0].lower())
    return ["| word | meaning |", "|---|---|", *(f"| {word} | {text} |" for word, text in entries), ""]


def document() -> str:
    """Return the document."""
    intro = "On the page, hover over a word with a dotted line, tap it, or focus it with Tab."
    first = "The words of the page and of the library, and what they mean."
    page = ["# Glossary", "", first, "", "## Words of the page", "", intro, "", *rows(GLOSSARY)]
    return "\n".join([*page, "## Words of the library", "", *rows(LIBRARY)])


def test_the_document_is_the_glossary() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document()


def test_no_word_is_explained_twice() -> None:
    assert not LIBRARY.keys() & GLOSSARY.keys()


def test_the_words_of_the_page_have_a_meaning() -> None:
    assert {*ASKED, *VERDICTS, CROP["word"]} <= {*GLOSSARY}


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
