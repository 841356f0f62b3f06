"""Numbers and lists in messages, where each case is a fault that no other test detected, and BibTeX."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import torch

import explainers
from saliscope.compute import messages as page_messages
from saliscope.compute.bundles import messages as bundle_messages
from saliscope.compute.bundles.record import caption
from saliscope.compute.channels import messages
from saliscope.compute.channels.answers import Channel, InputGradient
from saliscope.compute.lab.messages import depth_read
from saliscope.compute.messages import fetching, planes
from saliscope.compute.methods.papers import bibtex
from saliscope.page.methods.picker import LONGEST, first_sentence
from tests.saliscope.compute.asking import text_of

GRADIENT = InputGradient(None, None, 3, (7, 9), (2, 5), True, None, 1.5, torch.ones(4, 4))
LAYER = SimpleNamespace(name="layer4", kind="Bottleneck", grid=(7, 9), stage=True)
QUESTION = {"class": "dog", "layer": "layer4", "plane": 3, "options": {}}
ANSWER = {"title": "DFF", "probability": 0.5, "reads_class": True, "takes_layer": True, "model": "Net", "share": 0.4}


METHOD = SimpleNamespace(name="token_pca", title="PCA", reads_class=False, takes_layer=True, family="activations")
STOPPED: Any = SimpleNamespace(
    settings=SimpleNamespace(method=METHOD, layer="head", loaded=SimpleNamespace(title="Net")), planes=3, plane=1,
    explanation=SimpleNamespace(seconds=0.75, device="cpu"), share=0.75, by_user=True,
)  # fmt: skip


def no_option(count: int) -> str:
    return bundle_messages.no_option("Grad-CAM", list("abcde")[:count], [], ["relu"])


def dead(*channels: bool) -> str:
    step: Any = SimpleNamespace(
        settings=SimpleNamespace(layer="layer4"), total=3, dead=torch.tensor(channels), maps=torch.zeros(3, 7, 9)
    )
    return messages.sheet(step, (7, 9))


def test_messages_have_their_numbers() -> None:
    for message, expected in (
        (messages.no_cell((6, 0), (7, 9)), "No cell at row 7, column 1: the layer has 7 × 9 cells."),
        (messages.input_gradient(GRADIENT), "strongest cell (row 3, column 6), value 1.5"),
        (depth_read(LAYER, 0.25, 0.5), "layer4 · Bottleneck, 7 × 9, stage: norm 0.25, 50% exact zeros"),
        (no_option(1), "Grad-CAM has no option “a”. Available: relu."),
        (no_option(3), "Grad-CAM has no options “a”, “b”, “c”. Available: relu."),
        (no_option(4), "Grad-CAM has no options “a”, “b”, “c” and more. Available: relu."),
        (fetching("ResNet-50", 1_500_000, 97_800_000), "Downloading ResNet-50: 2 of 98 MB"),
        (fetching("ResNet-50", 1_500_000, 0), "Downloading ResNet-50: 2 MB"),
        (fetching("ResNet-50", 0, 97_800_000), "Loading ResNet-50…"),
        (
            *caption({"question": QUESTION, "answer": ANSWER | {"device": "cpu"}}),
            "DFF for dog (50%) at layer layer4 of Net, plane 3, stopped at 40%, computed on cpu.",
        ),
        (dead(False, False, False) + "|", "layer4: 3 channels of 7 × 9.|"),
        (dead(True, False, False), "layer4: 3 channels of 7 × 9; 1 is dead (zero everywhere for this image)."),
        (dead(True, True, False), "layer4: 3 channels of 7 × 9; 2 are dead (zero everywhere for this image)."),
        (page_messages.waiting(0.2, 1, True), "Waiting for another user’s run, about 1 s"),
        (page_messages.waiting(3.4, 2, False), "Waiting, 2 runs ahead, about 3 s"),
        (page_messages.no_plane(5, 3), "Choose a plane from 0 to 2."),
        (page_messages.wrong_numbers({"batch_size": "x"}), "Invalid options: batch size “x”. Correct them"),
        (
            text_of(page_messages.answered(STOPPED, 1)["parts"]) + "|",
            "PCA, component 2 of 3, at head of Net · 750 ms on cpu · stopped at 75%|",
        ),
        (first_sentence("One sentence. And another.") + "|", "One sentence.|"),
        (first_sentence("a" * (LONGEST - 1)), "a" * (LONGEST - 1) + "."),
        (first_sentence("a" * LONGEST), "a" * (LONGEST - 1) + "…."),
    ):
        assert expected in message


def test_planes_are_numbered_and_few_components_can_be_shown_together() -> None:
    for method, count, word, first, is_together in (
        ("feature_maps", 3, "Channel", 0, False), ("attention_heads", 3, "Head", 0, False),
        ("token_pca", 3, "Component", 1, False), ("deep_feature_factorization", 10, "Component", 1, True),
        ("deep_feature_factorization", 11, "Component", 1, False),
    ):  # fmt: skip
        step: Any = SimpleNamespace(planes=count, settings=SimpleNamespace(method=SimpleNamespace(name=method)))
        found = planes(step)
        assert (found["word"], found["first"], found["count"]) == (word, first, f"of {count}")
        assert ("all" in found) == is_together, (method, count)


def test_sparsity_is_left_out_if_it_is_not_defined() -> None:
    channel = Channel(None, None, None, 3, 8, torch.ones(2, 2))
    assert messages.facts(channel, 0.5)[-1] == ["Sparsity", "0.50"]
    assert [name for name, _ in messages.facts(channel, float("nan"))] == ["Mean", "Largest", "Smallest", "Zeros"]


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

    assert bibtex(Method()) == ""
