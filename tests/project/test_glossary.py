"""docs/glossary.md has the glossary of the page. `python -m tests.project.test_glossary` writes its table again."""

from __future__ import annotations

import re
from pathlib import Path

from saliscope.page.panel.messages import CROP
from saliscope.page.shared.glossary import GLOSSARY

DOCUMENT = Path(__file__).parents[2] / "docs" / "glossary.md"
HEAD = "| word | meaning |\n|---|---|\n"
ASKED = ["logit", "layer", "contribution", "% of the map", "brightest % of the map", "gradient norm", "crop"]
VERDICTS = ["random maps", "edge maps", "centered blob", "depends on the class", "depends on the weights", "evidence"]


def document() -> str:
    """Return the document with the table of the page. The second table is written by hand."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(HEAD)
    rows = [f"| {word} | {text} |\n" for word, text in sorted(GLOSSARY.items(), key=lambda item: item[0].lower())]
    return before + HEAD + "".join(rows) + "\n" + rest.partition("\n\n")[2]


def test_the_document_has_the_glossary_and_explains_no_word_twice() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    words = re.findall(r"^\| (.*?) \| \w", text.replace(HEAD, ""), re.M)
    assert text == document() and len(words) == len(set(words)) > len(GLOSSARY)


def test_the_words_of_the_page_have_a_meaning() -> None:
    assert {*ASKED, *VERDICTS, CROP["word"]} <= {*GLOSSARY}


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
