"""Sentences as targets: in requests, answers, links, bundles, the API, and every feature of the page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.cli import commands
from saliscope.compute import engine, headline, messages, model_cache, results_cache
from saliscope.compute.answers import Answer, Refining, Settings, Stages
from saliscope.compute.bundles import bundle, links
from saliscope.compute.channels import engine as channels
from saliscope.compute.channels.answers import Measures, Sheet
from saliscope.compute.compare import questions
from saliscope.compute.jobs.runs import Run
from saliscope.compute.maps import top
from saliscope.compute.rail import norms
from saliscope.compute.ranking import engine as ranking
from saliscope.compute.request import LONGEST, Request
from saliscope.compute.text_messages import NO_SENTENCE, TWO_SENTENCES
from saliscope.compute.trust import engine as trust
from saliscope.compute.trust.answers import CheckedMap
from saliscope.errors import Refused
from saliscope.images import uploads
from saliscope.page.api import answers as api
from saliscope.page.api import snippets
from saliscope.page.batch import engine as batch
from saliscope.page.compare import compare as compare_view
from saliscope.page.components import view
from saliscope.runs import shards
from saliscope.zoo.text import BAR
from tests.saliscope.compute.asking import DOG, MODEL, last_steps, steps_of
from tests.support.catalog import isolate_catalog
from tests.support.two_encoders import TwoEncoders, tokenize

NAME = "tests.support.two_encoders:build"
OWN, OTHER = "a photo of a dog", "a <b>cat</b> & “more”"
BOTH = f"{OWN}{BAR}{OTHER}"
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module", autouse=True)
def offered(loaded: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Offer the network."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about the assumed preprocessing
        isolate_catalog(patch, folder)
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        zoo.add(NAME, size=32)
        model_cache.load(NAME)
        yield


def request(target: str, **more: Any) -> Request:
    return Request(DOG, **{"model": NAME, "target": target, **more})


def ask(target: str, **more: Any) -> list[Any]:
    return steps_of(engine.explain, request(target, **more))


def answer(target: str, **more: Any) -> Answer:
    return next(step for step in ask(target, **more) if isinstance(step, Answer))


def last(kind: Any, function: Callable[..., Any], target: str, *values: Any) -> Any:
    *_, found = (step for step in function(request(target), *values, Run(60.0)) if isinstance(step, kind))
    return found


class ByHand:
    """The network without a wrapper, its input, the embeddings of both sentences, and their cosines to the image."""

    def __init__(self) -> None:
        self.net, self.images = TwoEncoders().eval(), model_cache.load(NAME).model.prepare(Image.open(DOG))
        with torch.no_grad():
            self.own, self.other = self.net.encode_text(tokenize([OWN, OTHER]))
            (image,) = self.net.encode_image(self.images)
        self.cosines = [float(v @ image / v.norm() / image.norm()) for v in (self.own, self.other)]
        self.both = explainers.Similarity(self.own, against=self.other)

    def call(self, function: Callable[..., Any], similarity: explainers.Similarity, layer: str) -> torch.Tensor:
        """Return the result of a function of the library for the image."""
        options = {"forward": self.net.encode_image, "layer": layer.removeprefix("model.")}
        found: torch.Tensor = function(self.net, self.images, similarity, **options)[0]
        return found


@pytest.fixture(scope="module")
def hand(offered: None) -> ByHand:
    return ByHand()


def test_the_map_is_that_of_the_library(hand: ByHand) -> None:
    for method in ("grad_cam", "saliency", "occlusion"):
        for target, similarity in ((OWN, explainers.Similarity(hand.own)), (BOTH, hand.both)):
            steps = ask(target, method=method)
            found = next(step for step in steps if isinstance(step, Answer))
            options = {name: value for name, value in found.options.items() if name in ("window", "stride", "relu")}
            options["forward"] = hand.net.encode_image
            expected = explainers.explain(method, hand.net, hand.images, similarity, **options)
            torch.testing.assert_close(found.map, expected.map[0], **CLOSE)
            assert found.map.abs().amax() > 0 and found.probabilities is not None
            count = len(found.settings.class_names)
            assert found.probabilities.tolist() == pytest.approx(hand.cosines[:count], abs=1e-6)
            for step in steps:
                if isinstance(step, Refining) and step.probabilities is not None:
                    assert torch.equal(step.probabilities, found.probabilities)
            for layer, plane in next(step for step in steps if isinstance(step, Stages)).maps.items():
                expected = hand.call(explainers.grad_cam, similarity, layer)
                torch.testing.assert_close(plane, expected, **CLOSE)


def test_what_the_page_says(hand: ByHand) -> None:
    cosines = hand.cosines
    own, other = (f"{value:.3g}".replace("-", "−") for value in cosines)
    one, two = answer(OWN), answer(BOTH)
    assert headline.headline(one)[0] == f"“{OWN}”, similarity {own}."
    assert headline.headline(two)[0] == f"“{OWN}” compared with “{OTHER}”, similarity {own} and {other}."
    assert headline.next_step(one) is None
    assert headline.next_step(two)["compare"][1]["own"] == {"target": OTHER}
    assert messages.unit(one.settings) == "cosine similarity"

    listed = view.classes(two, 1)
    assert {each["name"]: each["text"] for each in listed["items"]} == {OWN: own, OTHER: other}
    assert listed["title"] == "Cosine similarities" and listed["chosen"] == 0
    assert f"“{OTHER}” (cosine similarity {own} and {other}) at layer" in view.answer(two, 1)["caption"][0]
    stages = next(step for step in ask(BOTH) if isinstance(step, Stages))
    assert view.stages(stages, 1)["score"] == f"{cosines[0] - cosines[1]:.3g}".replace("-", "−")


def test_links_bundles_and_the_cache_have_the_sentences() -> None:
    found = answer(f"  {OWN}  |  {OTHER} ")
    assert found.name == found.settings.names["target"] == BOTH
    linked, _, _ = links.read(links.state(found.settings) | {"example": "dog"})
    assert linked.target == BOTH and engine.resolve(linked).sentences == found.settings.sentences
    asked = [request(target) for target in (OWN, OTHER, BOTH)]
    assert len({results_cache.key(engine.resolve(each), each) for each in asked}) == 3
    question = view.answer(found, 1)["record"]["question"]
    assert question["class"] == BOTH
    assert torch.equal(last_steps(bundle.request(question, DOG))[Answer].map, found.map)


def test_targets_without_a_map_are_refused() -> None:
    for target, message in (
        ("  ", NO_SENTENCE),
        (f"{BAR}{OTHER}", "The sentence to explain is empty. Enter it, or clear the other sentence."),
        ("a | b | c", "The target has more than two sentences. Enter one, or two to compare them."),
        (f"{OWN} | {OWN}", f"“{OWN}” and “{OWN}” have the same embedding"),
        ("one two three four five six seven eight nine", "ignores the end of “one two three"),
        ("a" * (LONGEST + 1), f"The sentences are longer than {LONGEST} characters in total. Shorten them."),
    ):
        with pytest.raises(Refused, match=message[:70]):
            ask(target)
        assert isinstance(next(engine.explain(request(target), Run(60.0))), Settings)  # for the lists
    note = answer(OWN, model=MODEL).settings.notes[0]
    assert f"“{OWN}”. This model has no text encoder, so its target cannot be a sentence. Using" in note
    # The class of the previous model becomes the sentence, but not its channels.
    assert engine.resolve(request("fox", lenient=True)).names["target"] == "fox"
    assert engine.resolve(request("channel 3 of conv", lenient=True)).refusal == NO_SENTENCE


def test_channels_norms_ranking_and_small_maps(hand: ByHand) -> None:
    layer = model_cache.load(NAME).default
    assert last(Sheet, channels.sheet, "").maps.ndim == 3  # the channels themselves need no sentence
    for function, more in (
        (channels.measure, {"kind": "effect"}),
        (ranking.rank, {"options": ranking.RankingOptions(1.0)}),
    ):
        with pytest.raises(Refused, match="No sentence given"):
            steps_of(function, request(""), **more)
    measured = steps_of(channels.measure, request(BOTH), kind="effect")[-1]
    assert isinstance(measured, Measures) and measured.subject.name == f"“{OWN}” compared with “{OTHER}”"
    expected = hand.call(explainers.channel_effects, hand.both, layer)
    torch.testing.assert_close(measured.values, expected.float(), rtol=1e-3, atol=1e-6)
    assert last(norms.Norms, norms.measure, BOTH).norms[layer] > 0
    table = last(ranking.Ranking, ranking.rank, OWN, ranking.RankingOptions(2.0))
    assert table.target == f"“{OWN}”"

    key = results_cache.key(engine.resolve(request(BOTH)), request(BOTH))
    *_, small = top.explain(request(BOTH), Run(60.0), key, "grad_cam", [0, 1])
    assert isinstance(small, top.TopMaps)
    for index, vector in enumerate((hand.own, hand.other)):
        alone = hand.call(explainers.grad_cam, explainers.Similarity(vector), layer)
        torch.testing.assert_close(small.maps[index], alone, **CLOSE)


def test_comparison_and_verdict(hand: ByHand) -> None:
    page = {"model": NAME, "target": BOTH}

    def compare(**choice: Any) -> Answer:
        panel = questions.parse({"page": page, **choice})
        (found,) = (step for step in steps_of(questions.answers, panel, DOG) if isinstance(step, Answer))
        assert compare_view.resolved(panel, found.settings)["found"] == [(OWN, OWN), (OTHER, OTHER)]
        return found

    for choice, shown in (({"runner": True}, OTHER), ({"own": {"target": ""}}, OWN), ({}, BOTH)):
        found = compare(**choice)
        assert found.name == shown
        torch.testing.assert_close(found.map, answer(shown).map)
    with pytest.raises(Refused, match="The second sentence is missing. Enter one under Compared with"):
        compare(page=page | {"target": OWN}, runner=True)

    key = results_cache.key(engine.resolve(request(BOTH)), request(BOTH))
    verdict = last(CheckedMap, lambda asked, run: trust.check(asked, run, key), BOTH)
    assert verdict.unit == "cosine similarity" and verdict.uncompared == TWO_SENTENCES and verdict.similarity is None
    curve = verdict.evaluation.curves["deletion"]  # its first point is the unchanged image
    tolerance = 1e-2 if verdict.evaluation.options["precision"] == "bf16" else 1e-4  # chosen if the processor has it
    assert float(curve[0, 0]) == pytest.approx(hand.cosines[0] - hand.cosines[1], abs=tolerance)


@pytest.mark.filterwarnings("ignore:.*preprocessing")
def test_the_api_and_its_snippet(hand: ByHand, tmp_path: Path) -> None:
    path = Path(uploads.upload_folder()) / "dog.jpg"
    path.write_bytes(Path(DOG).read_bytes())
    file: Any = {"path": str(path)}
    found = api.explain(file, model=NAME, target=BOTH)
    assert (found["target"]["name"], found["target"]["similarity"]) == (BOTH, pytest.approx(hand.cosines[0], abs=1e-6))
    listed = {each["name"]: each["similarity"] for each in found["predictions"]}
    assert listed == pytest.approx(dict(zip((OWN, OTHER), hand.cosines, strict=True)), abs=1e-6)
    code = snippets.snippets(answer(BOTH).settings)["items"][1]["code"]
    code = code.replace('"photo.jpg"', repr(DOG)).replace('"overlay.png"', repr(str(tmp_path / "o.png")))
    ran: dict[str, Any] = {}
    exec(code.replace(f"load_model({NAME!r})", f"load_model({NAME!r}, size=32)"), ran)
    np.testing.assert_allclose(ran["e"].map[0].numpy(), np.load(found["map"].path), **CLOSE)


def test_batches_and_the_command_line(hand: ByHand, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(Refused, match="No sentence given"):
        steps_of(batch.explain, Request(model=NAME), [(DOG, "dog.jpg")])
    page = steps_of(batch.explain, Request(model=NAME, target=BOTH), [(DOG, "dog.jpg")])[-1]
    assert isinstance(page, batch.Report) and OWN in page.html and "<b>cat</b>" not in page.html

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            commands.main([*arguments])
        return "".join(capsys.readouterr())

    explain = ("explain", DOG, "--model", NAME, "--size", "32", "--out", str(tmp_path / "run"))
    assert "has no classes. Use a sentence" in run(*explain)
    assert "The target is empty" in run(*explain, "--text", "")
    run(*explain, "--text", BOTH)
    (row,) = shards.open_run(tmp_path / "run").table.to_pylist()
    own, other = hand.cosines
    assert row["target"] == BOTH and row["score"] == pytest.approx(own - other, abs=1e-5)
    assert row["prediction"] == (OWN, OTHER)[other > own] and row["probability"] is None
    assert "Evaluated 1 image" in run("evaluate", str(tmp_path / "run"), "--images", "1", "--steps", "2")
