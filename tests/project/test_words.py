"""One word for one thing, in American spelling: names, signatures, choices, fields and texts that users see."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from PIL import Image

import explainers
from explainers.experiments.interventions.changes import as_function
from explainers.options import Choice, Option
from explainers.perturbation import baselines
from saliscope.images.edits import edit
from saliscope.session.interventions import changes

ROOT = Path(__file__).parents[2]

SYNONYMS = {
    "zeros": "zero black blank empty none null nothing",
    "blur": "blurred blurry gaussian smoothed",
    "mean": "average avg means",
    "noise": "random noisy uniform",
}
"""Names of values that replace others, and words that must not be used for them."""

OPTIONS = {
    "image": "photo picture img pic photograph",
    "images": "photos pictures batch imgs",
    "target": "category class_index class_idx label_index",
    "steps": "n_steps num_steps step_count",
    "samples": "n_samples num_samples nt_samples n draws trials",
    "seed": "random_state generator rng",
    "sigma": "noise noise_level stdev stdevs",
    "baseline": "fill filling cover reference background replacement imputation",
    "budget": "timeout time_limit max_seconds time_budget",
    "batch_size": "internal_batch_size batchsize chunk",
    "progress": "callback verbose on_progress",
    "epsilon": "eps",
    "colors": "colormap cmap palette tint",
    "window": "patch_size kernel_size",
    "layer": "layer_name target_layer module",
    "method": "explainer algorithm",
}
"""Names of parameters, and words that must not be used for them."""
BRITISH = re.compile(
    r"""(?ix) (?<![a-z])(?: (?:colour|centre|metre|litre|fibre|theatre|favour|behaviour|neighbour|honour|labour|rumour
    |vapour|grey|artefact|licence|defence|catalogue|analogue|dialogue|judgement|ageing|cheque|plough|sceptic|tyre
    |labelled|labelling|unlabelled|modelled|modelling|travelled|signalled|signalling|fuelled|channelled|levelled|tunnelled
    |unravelled|focussed) [a-z]*
    | (?:normal|optim|visual|initial|organ|random|summar|recogn|minim|maxim|serial|categor|general|special|local|global
    |real|final|equal|stabil|regular|quant|token|vector|binar|linear|parallel|synchron|custom|priorit|util|character
    |standard|penal|capital|emphas|harmon|synthes|hypothes|memor|authent|author|crystall|ideal|neutral|symbol|polar
    |discret|factor|rasteri|pixelat)is(?:e|es|ed|er|ers|ing|ation|ations|able)
    | (?:anal|catal|paral)ys(?:e|ed|er|ing) ) (?![a-z])"""
)


def public() -> Iterator[tuple[str, Any]]:
    """Public objects by name, and the public methods of public classes."""
    for name in sorted(set(explainers.__all__) - {"MethodName"}):  # which is an alias of types
        found = getattr(explainers, name)
        yield name, found
        if inspect.isclass(found):
            for own, member in vars(found).items():
                if not own.startswith("_") and callable(member):
                    yield f"{name}.{own}", member


def parameters() -> Iterator[tuple[str, str]]:
    """Where and name of each parameter of a public function or class, and of each option of a metric."""
    for where, found in public():
        if callable(found):
            try:
                names = list(inspect.signature(found).parameters)
            except ValueError:
                continue
            yield from ((where, name) for name in names if not name.startswith("_"))
    for metric in explainers.METRICS.values():
        yield from ((metric.name, name) for name in metric.options)


def options() -> Iterator[tuple[str, Option]]:
    for entries in (explainers.METHODS, explainers.METRICS):
        for name, entry in entries.items():
            yield from ((name, option) for option in entry.options.values())


def choices() -> Iterator[tuple[str, str]]:
    """Where and text of each choice: declared options, `Choice` in any signature, and the values that pages send."""
    for where, option in options():
        yield from ((f"{where}({option.name})", choice) for choice in option.choices)
    for where, found in public():
        if callable(found) and not inspect.isclass(found):
            optional = {"Image": Image}  # Pillow, which the library imports only where it is used
            hints = get_type_hints(inspect.unwrap(found), localns=optional, include_extras=True)
            for name, hint in hints.items():
                yield from ((f"{where}({name})", choice) for choice in choices_in(hint))
    yield from (("baselines", name) for name in baselines.NAMES)
    yield from (("fills of the page", name) for name in edit.FILLS)
    yield from (("changes of channels on the page", name) for name in changes.KINDS)


def choices_in(hint: Any) -> Iterator[str]:
    for each in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        if isinstance(each, Choice):
            yield from each.values
        elif get_origin(hint) is Literal and isinstance(each, str):
            yield each
        elif get_origin(each) is not None:
            yield from choices_in(each)


def test_values_that_replace_others_have_the_same_names_everywhere() -> None:
    words = {word: name for name, others in SYNONYMS.items() for word in others.split()}
    wrong = [f"{where}: {choice!r} instead of {words[choice]!r}" for where, choice in choices() if choice in words]
    assert not wrong, "\n".join(wrong)


def test_options_have_the_same_names_everywhere() -> None:
    words = {word: name for name, others in OPTIONS.items() for word in others.split()}
    wrong = {f"{where}({name}) instead of {words[name]!r}" for where, name in parameters() if name in words}
    assert not wrong, "\n".join(sorted(wrong))


def test_every_function_with_a_baseline_takes_the_same_names() -> None:
    found = {where: option for where, option in options() if option.name == "baseline"}
    assert len(found) > 15
    for where, option in found.items():
        assert option.choices == baselines.NAMES, where
        assert option.default in baselines.NAMES, f"{where}: the default has a name"
    import torch

    images = torch.rand(1, 3, 8, 8)
    for name in baselines.NAMES:
        assert baselines.baseline_of(images, name).shape == images.shape
    assert not baselines.baseline_of(images, "zeros").any()
    with pytest.raises(explainers.BadOption, match="baseline is None"):
        baselines.baseline_of(images, None)  # type: ignore[arg-type]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    for name in baselines.NAMES:
        assert explainers.smallest_region(net, images, torch.rand(1, 8, 8), baseline=name).mask.shape == (1, 8, 8)
    for name in ("zeros", "mean"):
        assert as_function(name)(images).shape == images.shape


def names() -> Iterator[tuple[str, str]]:
    for where, found in public():
        yield where, where
        if is_dataclass(found):
            yield from ((where, field.name) for field in fields(found))
    yield from parameters()
    yield from choices()
    for where, option in options():
        yield f"{where}({option.name})", option.help
    for entries in (explainers.METHODS, explainers.METRICS):
        for name, entry in entries.items():
            yield name, f"{name} {entry.title} {entry.summary}"


def test_public_names_and_choices_are_american() -> None:
    wrong = {f"{where}: {text!r}" for where, text in names() if BRITISH.search(text.replace("_", " "))}
    assert not wrong, "\n".join(sorted(wrong))


TITLES = {"saliscope/session/methods/papers.py"}
"""Files with the titles of papers, which are not ours."""


def test_fields_and_texts_of_the_application_are_american() -> None:
    """All sources, since a field or a text may come from any of them."""
    kinds = ("*.py", "*.js", "*.css", "*.html", "*.json")
    wrong = []
    for folder in ("saliscope", "models"):
        for path in sorted(each for kind in kinds for each in (ROOT / folder).rglob(kind)):
            where = path.relative_to(ROOT).as_posix()
            if "vendor" in where or where in TITLES:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                text = re.sub(r"[_\-]|(?<=[a-z])(?=[A-Z])", " ", line)
                wrong += [f"{where}:{number}: {match[0]}" for match in BRITISH.finditer(text)]
    assert not wrong, "\n".join(wrong[:50])


def test_the_word_list_finds_what_it_should() -> None:
    for word in (
        "colour",
        "colours",
        "centre",
        "grey",
        "normalise",
        "randomisation",
        "optimiser",
        "labelled",
        "analysed",
    ):
        assert BRITISH.search(word), word
    for word in (
        "color",
        "center",
        "gray",
        "normalize",
        "precise",
        "noise",
        "raise",
        "otherwise",
        "exercise",
        "advise",
    ):
        assert not BRITISH.search(word), word
