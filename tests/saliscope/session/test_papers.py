"""BibTeX of the methods: fields that agree with what the methods say about their papers."""

from __future__ import annotations

import re

import explainers
from saliscope.session.methods.papers import bibtex

LATER = {"grad_eclip"}
"""Methods whose preprint is a year younger than the paper they name."""


def test_every_method_has_the_entries_of_its_papers() -> None:
    for name, method in explainers.METHODS.items():
        papers = [part.strip() for part in method.paper.split(";")]
        entries = bibtex(method).split("\n\n")
        assert len(entries) == len(papers), name
        for paper, entry in zip(papers, entries, strict=True):
            fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.M))
            assert re.match(r"@\w+\{[a-z]+\d{4}[a-z]+,\n", entry) and entry.endswith("\n}"), entry
            assert fields["author"].startswith(re.split(r"[ ,]", paper)[0] + ","), entry
            assert fields["title"].startswith("{") and "&" not in entry.replace(r"\&", ""), entry
            assert name in LATER or fields["year"] in re.findall(r" (\d{4})\b", paper), entry
            number = re.search(r"arXiv:(\S+)", paper) or re.search(r"doi:(\S+)", paper)
            assert number is None or number[1] in (fields.get("eprint"), fields.get("doi")), entry


def test_an_unknown_paper_has_no_entry() -> None:
    class Method:
        paper = "Doe et al. 2031, arXiv:3101.00001"

    assert bibtex(Method()) == ""  # type: ignore[arg-type]
