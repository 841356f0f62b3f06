"""Numbers and lists in messages: each case is a fault that no other test detected."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from saliscope.page.methods.picker import LONGEST, first_sentence
from saliscope.session.bundles import messages as bundle_messages
from saliscope.session.channels import messages
from saliscope.session.channels.answers import Channel, InputGradient
from saliscope.session.lab.messages import depth_read
from saliscope.session.messages import fetching


def test_rows_and_columns_are_counted_from_1() -> None:
    assert messages.no_cell((6, 0), (7, 9)) == "No cell at row 7, column 1: the layer has 7 × 9 cells."
    gradient = InputGradient(None, None, 3, (7, 9), (2, 5), True, None, 1.5, torch.ones(4, 4))  # type: ignore[arg-type]
    assert "strongest cell (row 3, column 6), value 1.5" in messages.input_gradient(gradient)


def test_the_values_of_a_bar_are_in_percent() -> None:
    layer = SimpleNamespace(name="layer4", kind="Bottleneck", grid=(7, 9), stage=True)
    assert depth_read(layer, 0.25, 0.5) == "layer4 · Bottleneck, 7 × 9, stage: norm 0.25, 50% exact zeros"


def test_three_unknown_options_are_named() -> None:
    def message(count: int) -> str:
        return bundle_messages.no_option("Grad-CAM", list("abcde")[:count], [], ["relu"])

    assert message(1) == "Grad-CAM has no option “a”. Available: relu."
    assert message(3) == "Grad-CAM has no options “a”, “b”, “c”. Available: relu."
    assert message(4) == "Grad-CAM has no options “a”, “b”, “c” and more. Available: relu."


def test_the_first_sentence_fits_on_the_page() -> None:
    assert first_sentence("One sentence. And another.") == "One sentence."
    long, longest = first_sentence("a" * LONGEST), first_sentence("a" * (LONGEST - 1))
    assert longest == "a" * (LONGEST - 1) + "." and long == "a" * (LONGEST - 1) + "…."


def test_sparsity_is_left_out_if_it_is_not_defined() -> None:
    channel = Channel(None, None, None, 3, 8, torch.ones(2, 2))  # type: ignore[arg-type]
    assert messages.facts(channel, 0.5)[-1] == ["Sparsity", "0.50"]
    assert [name for name, _ in messages.facts(channel, float("nan"))] == ["Mean", "Largest", "Smallest", "Zeros"]


def test_a_download_is_counted_in_megabytes() -> None:
    assert fetching("ResNet-50", 1_500_000, 97_800_000) == "Downloading ResNet-50: 2 of 98 MB"
    assert fetching("ResNet-50", 1_500_000, 0) == "Downloading ResNet-50: 2 MB"
    assert fetching("ResNet-50", 0, 97_800_000) == "Loading ResNet-50…"


def test_a_caption_names_the_plane_and_the_share_of_a_stopped_run() -> None:
    question = {"class": "dog", "layer": "layer4", "plane": 3, "options": {}}
    answer = {
        "title": "DFF",
        "probability": 0.5,
        "reads_class": True,
        "takes_layer": True,
        "model": "Net",
        "share": 0.4,
        "device": "cpu",
    }
    record = {"question": question, "answer": answer}
    assert bundle_messages.caption(record) == [
        "DFF for dog (50%) at layer layer4 of Net, plane 3, stopped at 40%, computed on cpu."
    ]


def test_dead_channels_are_counted_above_the_tiles() -> None:
    def line(*dead: bool) -> str:
        settings = SimpleNamespace(layer="layer4")
        step = SimpleNamespace(settings=settings, total=3, dead=torch.tensor(dead), maps=torch.zeros(3, 7, 9))
        return messages.sheet(step, (7, 9))  # type: ignore[arg-type]

    assert line(False, False, False) == "layer4: 3 channels of 7 × 9."
    assert line(True, False, False) == "layer4: 3 channels of 7 × 9; 1 is dead (zero everywhere for this image)."
    assert line(True, True, False) == "layer4: 3 channels of 7 × 9; 2 are dead (zero everywhere for this image)."
