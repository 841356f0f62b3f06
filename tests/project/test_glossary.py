"""docs/glossary.md is made from the glossary of the page. `python -m tests.project.test_glossary` writes it again."""

from __future__ import annotations

from pathlib import Path

from saliscope.page.panel.messages import CROP
from saliscope.page.shared.glossary import GLOSSARY

DOCUMENT = Path(__file__).parents[2] / "docs" / "glossary.md"
ASKED = ["logit", "layer", "contribution", "% of the map", "brightest % of the map", "gradient norm", "crop"]
VERDICTS = ["random maps", "edge maps", "centered blob", "depends on the class", "depends on the weights", "evidence"]


def document() -> str:
    """Return the document."""
    rows = [f"| {word} | {text} |" for word, text in sorted(GLOSSARY.items(), key=lambda item: item[0].lower())]
    intro = "The words of the page. On the page, hover over a word with a dotted line, tap it, or focus it with Tab."
    return "\n".join(["# Glossary", "", intro, "", "| word | meaning |", "|---|---|", *rows, ""])


def test_the_document_is_the_glossary() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document()


def test_the_words_of_the_page_have_a_meaning() -> None:
    assert {*ASKED, *VERDICTS, CROP["word"]} <= {*GLOSSARY}


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
