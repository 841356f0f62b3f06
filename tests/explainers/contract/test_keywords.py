"""Keywords that methods share: declared in explainers/keywords.py, shown in signatures, also of your own methods."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

import explainers
from explainers import METHODS, BadOption, Partial, check_explainer, explain, smooth
from explainers.keywords import DEFAULTS, Call, Cost, Limits, SteadyCost, signature_of
from explainers.registry import method
from tests.support.nets import random_images, residual


class Own(Cost, total=False):
    """Shared keywords and one more."""

    strength: float | None


def unregistered(
    model: nn.Module, images: Tensor, target: Any = None, *, steps: int = 4, **cost: Unpack[Cost]
) -> Tensor:
    """Integrated gradients, with the shared keywords passed on."""
    return explainers.integrated_gradients(model, images, target, steps=steps, **cost)


@pytest.fixture
def registered() -> Iterator[Any]:
    yield method(family="gradient", returns="pixels", title="Own", paper="none")(unregistered)
    del METHODS["unregistered"], unregistered.__signature__  # type: ignore[attr-defined]


def test_the_signature_has_every_keyword_with_its_default() -> None:
    for name, chosen in METHODS.items():
        parameters = inspect.signature(chosen.function).parameters
        shared = {key: parameters[key].default for key in parameters if key in DEFAULTS}
        assert shared.items() <= DEFAULTS.items() and list(shared)[-2:] == ["forward", "through"], name
        assert ({"batch_size", "progress", "budget"} <= set(shared)) == chosen.long, name
        assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values()), name
        assert chosen.parameters == tuple(parameters), name


def test_every_keyword_has_one_default() -> None:
    assert set(DEFAULTS) == set(Cost.__annotations__) == set(SteadyCost.__annotations__)
    assert {*Call.__annotations__} < {*Limits.__annotations__} < {*Cost.__annotations__}


def test_help_lists_the_shared_keywords() -> None:
    text = pydoc.plaintext.document(explainers.smooth_grad)
    assert "precision: 'Precision' = 'float32', progress: 'Progress | None' = None" in text
    assert "forward: 'Forward | None' = None, through: 'ThroughLike | None' = None) -> 'Tensor'" in text


def test_a_function_without_shared_keywords_keeps_its_signature() -> None:
    def plain(images: Tensor, **options: Any) -> None: ...

    def bare(**options): ...

    def unknown(model: nn.Module, **options: Unpack[OnlyForTypeCheckers]) -> None: ...  # type: ignore # noqa: F821

    for function in (plain, bare, unknown, lambda: None, torch.nn.Conv2d(1, 1, 1)):
        assert signature_of(function) == inspect.signature(function)


def test_a_class_of_your_own_may_add_keywords() -> None:
    def own(model: nn.Module, **options: Unpack[Own]) -> None: ...

    # Defined in a function, so its annotation can only be read if it is not a string.
    own.__annotations__["options"] = Unpack[Own]
    parameters = signature_of(own).parameters
    assert list(parameters) == ["model", "strength", *DEFAULTS] and parameters["strength"].default is None


def test_an_own_method_may_declare_them(registered: Any) -> None:
    net, images, chosen = residual(), random_images(), METHODS["unregistered"]
    assert chosen.long and list(chosen.options) == ["precision"]
    assert chosen.options["precision"].choices == ("float32", "bf16")
    assert list(chosen.parameters)[3:] == ["steps", *DEFAULTS]
    expected = explainers.integrated_gradients(net, images, 1, steps=4)
    assert torch.equal(registered(net, images, 1, forward=lambda x: net(x), batch_size=3), expected)
    assert explain("unregistered", net, images, 1, budget=60).total == 4
    with pytest.raises(BadOption, match=r"Did you mean 'batch_size'\? .*batch_size, precision, progress, budget, "):
        registered(net, images, internal_batch_size=3)
    with pytest.raises(BadOption, match="'fast' is not valid"):
        registered(net, images, precision="fast")


def test_checks_and_smoothing_find_them_in_a_function() -> None:
    report = check_explainer(unregistered)
    assert report, report
    skipped = [
        each.name for each in report.checks if each.passed is None and each.name in ("progress_and_stop", "batch_size")
    ]
    assert not skipped
    seen: list[Partial] = []
    smooth(unregistered, sigma=0.1, samples=2)(residual(), random_images(1), 1, progress=seen.append, batch_size=1)
    assert any(0 < partial.fraction < 0.5 for partial in seen), "progress within a sample"
