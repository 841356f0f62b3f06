"""Sentences as targets: in requests, answers, links, bundles, the API, and every feature of the page."""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
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
from saliscope.datasets import shards
from saliscope.errors import Refused
from saliscope.page.api import tab
from saliscope.page.batch import engine as batch
from saliscope.page.compare import view as compare_view
from saliscope.page.components import view
from saliscope.page.methods import guide
from saliscope.page.serving import endpoints
from saliscope.session import engine, headline, messages, model_cache, results_cache
from saliscope.session.answers import Answer, Refining, Settings, Stages
from saliscope.session.bundles import bundle, links, replay
from saliscope.session.channels import engine as channels
from saliscope.session.channels.answers import Measures, Sheet
from saliscope.session.compare import questions
from saliscope.session.jobs.runs import Run
from saliscope.session.maps import top
from saliscope.session.rail import norms
from saliscope.session.ranking import engine as ranking
from saliscope.session.request import LONGEST, Request
from saliscope.session.text_messages import NO_SENTENCE, TWO_SENTENCES
from saliscope.session.trust import engine as trust
from saliscope.session.trust.answers import CheckedMap
from saliscope.zoo.text import BAR
from tests.saliscope.session.asking import DOG
from tests.support.catalog import isolate_catalog
from tests.support.two_encoders import TwoEncoders, tokenize

NAME = "tests.support.two_encoders:build"
OWN, OTHER = "a photo of a dog", "a <b>cat</b> & “more”"
BOTH = f"{OWN}{BAR}{OTHER}"
CLASSES = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""


@pytest.fixture(scope="module", autouse=True)
def offered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Offer the network and a classifier in an engine without its background thread; return the classifier's name."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about the assumed preprocessing
        isolate_catalog(patch, folder)
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        patch.setattr(model_cache, "_loaded", OrderedDict())
        (folder / "three.py").write_text(CLASSES, encoding="utf-8")
        zoo.add(NAME, size=32)
        classifier = zoo.add(f"{folder / 'three.py'}:build", size=32)
        for name in (NAME, classifier):
            model_cache.load(name)
        patch.setattr(model_cache, "ready", done := model_cache.threading.Event())
        done.set()
        yield classifier


def ask(target: str, **more: Any) -> list[Any]:
    return list(engine.explain(Request(DOG, **{"model": NAME, "target": target, **more}), Run(60.0)))


def answer(target: str, **more: Any) -> Answer:
    return next(step for step in ask(target, **more) if isinstance(step, Answer))


def last(kind: Any, function: Callable[..., Any], target: str, *values: Any) -> Any:
    *_, found = (s for s in function(Request(DOG, NAME, target=target), *values, Run(60.0)) if isinstance(s, kind))
    return found


def by_hand(*sentences: str) -> tuple[TwoEncoders, torch.Tensor, list[torch.Tensor], list[float]]:
    """The network without a wrapper, its input, the embeddings of sentences, and their cosines to the image."""
    net, images = TwoEncoders().eval(), model_cache.load(NAME).model.prepare(Image.open(DOG))
    with torch.no_grad():
        vectors, image = list(net.encode_text(tokenize([*sentences]))), net.encode_image(images)[0]
    return net, images, vectors, [float(v @ image / v.norm() / image.norm()) for v in vectors]


@pytest.mark.parametrize("method", ["grad_cam", "saliency", "occlusion"])
def test_the_map_is_that_of_the_library(method: str) -> None:
    net, images, (own, other), cosines = by_hand(OWN, OTHER)
    for target, similarity in (
        (OWN, explainers.Similarity(own)),
        (BOTH, explainers.Similarity(own, against=other)),
    ):
        steps = ask(target, method=method)
        found = next(step for step in steps if isinstance(step, Answer))
        options = {name: value for name, value in found.options.items() if name in ("window", "stride", "relu")}
        expected = explainers.explain(method, net, images, similarity, forward=net.encode_image, **options)
        torch.testing.assert_close(found.map, expected.map[0], rtol=1e-4, atol=1e-6)
        assert found.map.abs().amax() > 0 and found.probabilities is not None
        assert found.probabilities.tolist() == pytest.approx(cosines[: len(found.settings.class_names)], abs=1e-6)
        for step in steps:
            if isinstance(step, Refining) and step.probabilities is not None:
                assert torch.equal(step.probabilities, found.probabilities)
        sweep = next(step for step in steps if isinstance(step, Stages)).maps
        for layer, plane in sweep.items():
            expected_map = explainers.grad_cam(
                net, images, similarity, layer=layer.removeprefix("model."), forward=net.encode_image
            )
            torch.testing.assert_close(plane, expected_map[0], rtol=1e-4, atol=1e-6)


def test_what_the_page_says() -> None:
    cosines = by_hand(OWN, OTHER)[3]
    own, other = (f"{value:.3g}".replace("-", "−") for value in cosines)
    one, two = answer(OWN), answer(BOTH)
    assert headline.headline(one)[0] == f"“{OWN}”, similarity {own}."
    assert headline.headline(two)[0] == f"“{OWN}” compared with “{OTHER}”, similarity {own} and {other}."
    assert headline.next_step(one) is None
    question = headline.next_step(two)
    assert question is not None and question["compare"][1]["own"] == {"target": OTHER}
    assert messages.unit(one.settings) == messages.unit(two.settings) == "cosine similarity"
    text = "".join(part["text"] if isinstance(part, dict) else part for part in guide.parts(two))
    assert f"“{OWN}” compared with “{OTHER}”" in text and "cosine similarity" in text

    listed = view.classes(two, 1)
    order = [(OWN, own), (OTHER, other)]
    assert [(each["name"], each["text"]) for each in listed["items"]] == order[:: 1 if cosines[0] > cosines[1] else -1]
    assert listed["title"] == "Cosine similarities" and listed["chosen"] == 0
    assert f"“{OTHER}” (cosine similarity {own} and {other}) at layer" in view.answer(two, 1)["caption"][0]
    stages = next(step for step in ask(BOTH) if isinstance(step, Stages))
    assert view.stages(stages, 1)["score"] == f"{cosines[0] - cosines[1]:.3g}".replace("-", "−")


def test_links_bundles_and_the_cache_have_the_sentences(tmp_path: Path) -> None:
    found = answer(f"  {OWN}  |  {OTHER} ")
    assert found.name == found.settings.names["target"] == BOTH
    request, _, _ = links.read(links.state(found.settings) | {"example": "dog"})
    assert request.target == BOTH and engine.resolve(request).sentences == found.settings.sentences
    keys = {results_cache.key(answer(target).settings, Request(DOG, NAME, target=target)) for target in (OWN, OTHER)}
    assert len(keys | {results_cache.key(found.settings, Request(DOG, NAME, target=BOTH))}) == 3

    question = view.answer(found, 1)["record"]["question"]
    assert question["class"] == BOTH and bundle.resolve_settings(question).sentences == found.settings.sentences
    assert torch.equal(replay._recompute(question, (DOG, None)).map, found.map)


def test_targets_without_a_map_are_refused(offered: str) -> None:
    for target, message in (
        ("", NO_SENTENCE),
        ("  ", NO_SENTENCE),
        (f"{BAR}{OTHER}", "The sentence to explain is empty. Enter it, or clear the other sentence."),
        ("a | b | c", "The target has more than two sentences. Enter one, or two to compare them."),
        (f"{OWN} | {OWN}", f"“{OWN}” and “{OWN}” have the same embedding"),
        ("one two three four five six seven eight nine", "ignores the end of “one two three"),
        ("a" * (LONGEST + 1), f"The sentences are longer than {LONGEST} characters in total. Shorten them."),
    ):
        with pytest.raises(Refused, match=message.replace("|", r"\|")[:70]):
            ask(target)
        assert isinstance(next(engine.explain(Request(DOG, NAME, target=target), Run(60.0))), Settings)  # for the lists
    note = answer("a photo of a dog", model=offered).settings.notes[0]
    assert "“a photo of a dog”. This model has no text encoder, so its target cannot be a sentence. Using" in note
    # The class of the previous model becomes the sentence, but not its channels.
    assert engine.resolve(Request(DOG, NAME, target="fox", lenient=True)).names["target"] == "fox"
    assert engine.resolve(Request(DOG, NAME, target="channel 3 of conv", lenient=True)).refusal == NO_SENTENCE


def test_channels_norms_ranking_and_small_maps() -> None:
    net, images, (own, other), _ = by_hand(OWN, OTHER)
    similarity = explainers.Similarity(own, against=other)
    layer = model_cache.load(NAME).default
    assert last(Sheet, channels.sheet, "").maps.ndim == 3  # the channels themselves need no sentence
    request, seconds = Request(DOG, NAME), ranking.RankingOptions(1.0)
    for steps in (channels.measure(request, Run(60.0), "effect"), ranking.rank(request, seconds, Run(60.0))):
        with pytest.raises(Refused, match="No sentence given"):
            list(steps)
    *_, measured = channels.measure(Request(DOG, NAME, target=BOTH), Run(60.0), "effect")
    assert isinstance(measured, Measures)
    expected = explainers.channel_effects(
        net, images, similarity, layer=layer.removeprefix("model."), forward=net.encode_image
    )[0]
    torch.testing.assert_close(measured.values, expected.float(), rtol=1e-3, atol=1e-6)
    assert measured.subject.name == f"“{OWN}” compared with “{OTHER}”"
    assert last(norms.Norms, norms.measure, BOTH).norms[layer] > 0
    table = last(ranking.Ranking, ranking.rank, OWN, ranking.RankingOptions(2.0))
    assert table.result.rows and table.target == f"“{OWN}”"

    shown = answer(BOTH)
    key = results_cache.key(shown.settings, Request(DOG, NAME, target=BOTH))
    *_, small = top.explain(Request(DOG, NAME, target=BOTH), Run(60.0), key, "grad_cam", [0, 1])
    assert isinstance(small, top.TopMaps)
    for index, vector in enumerate((own, other)):
        alone = explainers.grad_cam(
            net, images, explainers.Similarity(vector), layer=layer.removeprefix("model."), forward=net.encode_image
        )
        torch.testing.assert_close(small.maps[index], alone[0], rtol=1e-4, atol=1e-6)


def test_comparison_and_verdict() -> None:
    page = {"model": NAME, "target": BOTH}
    for choice, shown in (
        ({"own": {"target": OTHER}}, OTHER),
        ({"runner": True}, OTHER),
        ({"own": {"target": ""}}, OWN),
        ({}, BOTH),
    ):
        panel = questions.parse({"page": page, "place": True, **choice})
        steps = list(questions.answers(panel, DOG, Run(60.0)))
        (found,) = (step for step in steps if isinstance(step, Answer))
        assert found.name == shown
        torch.testing.assert_close(found.map, answer(shown).map)
        assert compare_view.resolved(panel, found.settings)["found"] == [(OWN, OWN), (OTHER, OTHER)]
    with pytest.raises(Refused, match="The second sentence is missing. Enter one under Compared with"):
        list(questions.answers(questions.parse({"page": page | {"target": OWN}, "runner": True}), DOG, Run(60.0)))

    request = Request(DOG, NAME, target=BOTH)
    key = results_cache.key(answer(BOTH).settings, request)
    verdict = [step for step in trust.check(request, Run(60.0), key) if isinstance(step, CheckedMap)][-1]
    assert verdict.unit == "cosine similarity" and verdict.uncompared == TWO_SENTENCES and verdict.similarity is None
    cosines = by_hand(OWN, OTHER)[3]
    curve = verdict.evaluation.curves["deletion"]  # its first point is the unchanged image
    tolerance = 1e-2 if verdict.evaluation.options["precision"] == "bf16" else 1e-4  # chosen if the processor has it
    assert float(curve[0, 0]) == pytest.approx(cosines[0] - cosines[1], abs=tolerance)


def test_the_api_and_its_snippet(tmp_path: Path) -> None:
    cosines = by_hand(OWN, OTHER)[3]
    path = Path(endpoints.get_upload_folder()) / "dog.jpg"
    path.write_bytes(Path(DOG).read_bytes())
    file: Any = {"path": str(path), "meta": {"_type": "gradio.FileData"}}
    found = endpoints.explain(file, model=NAME, target=BOTH)
    assert found["target"]["name"] == BOTH and found["target"]["similarity"] == pytest.approx(cosines[0], abs=1e-6)
    assert {each["name"]: each["similarity"] for each in found["predictions"]} == pytest.approx(
        {OWN: cosines[0], OTHER: cosines[1]}, abs=1e-6
    )
    values = np.load(found["map"].path)
    (code,) = (item["code"] for item in tab.snippets(answer(BOTH).settings)["items"] if "load_model" in item["code"])
    code = code.replace('"photo.jpg"', repr(DOG)).replace('"overlay.png"', repr(str(tmp_path / "o.png")))
    ran: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code.replace(f"load_model({NAME!r})", f"load_model({NAME!r}, size=32)"), ran)
    np.testing.assert_allclose(ran["e"].map[0].numpy(), values, rtol=1e-4, atol=1e-6)


def test_batches_and_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match="No sentence given"):
        list(batch.explain(Request(model=NAME), [(DOG, "dog.jpg")], Run(60.0)))
    *_, page = batch.explain(Request(model=NAME, target=BOTH), [(DOG, "dog.jpg")], Run(60.0))
    assert isinstance(page, batch.Report)
    assert "a photo of a dog" in page.html and "<b>cat</b>" not in page.html

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["saliscope", *arguments])
        with pytest.raises(SystemExit):
            commands.main()
        output = capsys.readouterr()
        return output.out + output.err

    network = ("--model", NAME, "--size", "32", "--out", str(tmp_path / "run"))
    assert "has no classes. Use --text" in run("explain", DOG, *network)
    assert "--text is empty" in run("explain", DOG, *network, "--text", "")
    run("explain", DOG, *network, "--text", BOTH)
    (row,) = shards.open_run(tmp_path / "run").table.to_pylist()
    _, _, _, cosines = by_hand(OWN, OTHER)
    assert row["target"] == BOTH and row["score"] == pytest.approx(cosines[0] - cosines[1], abs=1e-5)
    assert row["prediction"] == (OWN, OTHER)[cosines[1] > cosines[0]] and row["probability"] is None
    stored = np.frombuffer(row["map"], "<f2").reshape(row["map_height"], row["map_width"]) * row["map_scale"]
    np.testing.assert_allclose(stored, answer(BOTH).map.numpy(), rtol=2e-3, atol=1e-4)
    assert "Evaluated 1 image" in run("evaluate", str(tmp_path / "run"), "--images", "1", "--steps", "2")
