"""Names as people write them, one-element lists, defaults that work, and refusals of one kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

import explainers
from explainers import METHODS, BadOption, evaluate, explain, grad_cam, saliency
from explainers.keywords import DEFAULTS, Cost
from explainers.metrics.metric import find_metric
from explainers.registry import find
from tests.explainers.contract.test_contracts import SAMPLE
from tests.support.nets import Twice, curved, random_images, residual, settle

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def small() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


# Names


def test_every_method_and_metric_is_found_by_its_title_and_by_no_other() -> None:
    written = {"gradcam++": "grad_cam_pp", "GradCAMpp": "grad_cam_pp", "grad cam": "grad_cam", "SHAP": "kernel_shap"}
    written |= {"IG": "integrated_gradients", "D-RISE": "d_rise", "Input × gradient": "input_x_gradient"}
    for name, method in METHODS.items():
        written |= dict.fromkeys((method.title, name.upper(), name.replace("_", "-"), name.replace("_", "")), name)
    for each, name in written.items():
        assert find(each) is METHODS[name], each
    for name, metric in explainers.METRICS.items():
        for each in (metric.title, name.upper(), name.replace("_", "-")):
            assert find_metric(each).name == name, each


def test_functions_take_names_as_people_write_them_and_methods_as_functions() -> None:
    net = small()
    expected = explain("grad_cam", net, IMAGES, 1).map
    for method in ("Grad-CAM", grad_cam, METHODS["grad_cam"]):
        assert torch.equal(explain(method, net, IMAGES, 1).map, expected)
        assert evaluate(net, IMAGES, method, metrics="Deletion", steps=2, controls=False).method == "grad_cam"
        assert list(explainers.sweep(method, net, IMAGES, 1, layers=["0", "2"])) == ["0", "2"]
    assert explainers.smooth("Saliency", sigma=0.1, samples=2)(net, IMAGES, 1).samples == 2
    assert explainers.randomization_test(net, IMAGES, "Saliency", seeds=1).method == "saliency"
    assert explainers.compare_models(net, net, IMAGES, method="GradCAM").method == "grad_cam"


# Classes, layers and images


def test_arrays_and_numbers_of_numpy_are_classes_cells_and_channels() -> None:
    net, x = curved(), random_images()
    for classes in (np.array([1, 2, 0], dtype=np.uint8), [np.int64(1), 2, torch.tensor(0)], torch.tensor([1, 2, 0])):
        torch.testing.assert_close(saliency(net, x, classes), saliency(net, x, [1, 2, 0]))
    for class_ in (np.int64(2), np.array(2), torch.tensor(2)):
        assert explain("saliency", net, x, class_).target == [2, 2, 2]
    expected = saliency(net, x, explainers.unit("conv2", 1, at=(1, 2)))
    for at in (np.array([1, 2]), [1, 2], torch.tensor([1, 2])):
        torch.testing.assert_close(saliency(net, x, explainers.unit("conv2", np.int64(1), at=at)), expected)
    some = saliency(net, x, 1, through=("conv2", [1, 2]))
    for channels in (np.array([1, 2]), torch.tensor([1, 2]), range(1, 3)):
        torch.testing.assert_close(saliency(net, x, 1, through=("conv2", channels)), some)


def test_a_list_of_one_layer_is_a_layer_and_one_does_not_need_a_list() -> None:
    net = small()
    expected = grad_cam(net, IMAGES, 1, layer="2")
    for layer in (["2"], ("2",), [net[2]]):
        torch.testing.assert_close(grad_cam(net, IMAGES, 1, layer=layer), expected)
        torch.testing.assert_close(explain("grad_cam", net, IMAGES, 1, layer=layer).map, expected)
    assert explainers.intervene(net, IMAGES, ["2"], channels=[1]).layer == "2"
    assert explainers.trace_value(net, IMAGES[:1], ["2"]).layer == "2"
    assert explainers.unit(["2"], 1).check(1) is None
    for layers, methods in (("2", "grad_cam"), (net[2], grad_cam)):
        rows = explainers.recommend(net, IMAGES, layers=layers, methods=methods, budget=60, steps=3).rows
        assert {row.layer for row in rows} == {"2"}
        assert list(explainers.sweep("layer_cam", net, IMAGES, 1, layers=layers)) == ["2"]
        assert list(explainers.grad_cam_sweep(net, IMAGES, 1, layers=layers)) == ["2"]


def test_a_sweep_contains_the_default_layer() -> None:
    """Also if it is a call of a module that runs again, and check_explainer then checks the name of the call."""
    net, images = settle(Twice()), torch.randn(3, 3, 24, 20)
    assert explainers.default_layer(net, images) == "relu#2"
    report = explainers.check_explainer(grad_cam, model=net, images=images)
    assert report["layers"].passed, report["layers"]
    for model, x in ((net, images), (residual(), random_images())):
        name = explainers.default_layer(model, x)
        torch.testing.assert_close(explainers.grad_cam_sweep(model, x, 1)[name], grad_cam(model, x, 1))
        assert name in explainers.sweep("layer_cam", model, x, 1)


# Defaults and targets


def test_smallest_region_takes_a_method_and_a_class() -> None:
    net = small()
    with torch.no_grad():
        net[6].weight.mul_(30)
    classes = net(IMAGES).argmax(1).tolist()
    by_map = explainers.smallest_region(net, IMAGES, explain("saliency", net, IMAGES), baseline="zeros")
    for maps, target in (("saliency", None), (saliency, None), (METHODS["saliency"], classes)):
        by_name = explainers.smallest_region(net, IMAGES, maps, target, baseline="zeros")
        assert torch.equal(by_name.mask, by_map.mask) and by_map.classes == by_name.classes == classes
    other = [(label + 1) % 5 for label in classes]
    at_once = explainers.smallest_region(net, IMAGES, "saliency", other, goal="change", baseline="zeros")
    assert at_once.classes == other and float(at_once.fraction.max()) == 0, "another class is predicted already"
    for target, words in ((99, "Class 99 does not exist"), (explainers.Probability(1), "is not a class")):
        with pytest.raises(explainers.BadTarget, match=words):
            explainers.smallest_region(net, IMAGES, "saliency", target)


def test_intervene_reports_the_score_of_a_target() -> None:
    net = small()
    without = explainers.intervene(net, IMAGES, "2", channels=[1, 2])
    found = explainers.intervene(net, IMAGES, "2", [3, 1], channels=[1, 2])
    assert without.target is without.target_before is without.target_after is None and found.target == [3, 1]
    torch.testing.assert_close(found.before, without.before)
    for scores, target in ((found.before, found.target_before), (found.after, found.target_after)):
        torch.testing.assert_close(target, scores[[0, 1], [3, 1]])
    assert "change of the target's score" in repr(found) and "target" not in repr(without)
    shares = explainers.intervene(net, IMAGES, "2", explainers.Probability(3))
    torch.testing.assert_close(shares.target_after, shares.after.softmax(1)[:, 3])


# Refusals


LARGE = torch.rand(40, 40)
STRANGE = [None, "x", -1, 1.5, float("nan"), [], {}, object(), (LARGE,), (small(),)]
GIVEN: dict[str, Any] = dict.fromkeys(("model", "model_a", "model_b"), small())
GIVEN |= {"images": IMAGES, "image": IMAGES[:1], "others": IMAGES.flip(0), "method": "saliency", "layer": "2"}
GIVEN |= {"maps": torch.rand(2, 16, 16), "map": torch.rand(4, 4), "features": torch.rand(3, 4, 4)}
GIVEN |= {"mask": torch.ones(4, 4), "layers": ["2"], "size": (4, 4), "channel": 1, "class_": 1, "against": 2}
GIVEN |= {"classes": 1, "labels": (1,), "boxes": torch.tensor([[0.0, 0, 2, 2]]), "embedding": torch.ones(4)}
GIVEN |= {"activation": "softmax", "target": 1, "factor": 2.0, "std": 0.1, "channels": [1], "value": 0.0}
GIVEN |= {"mean": 0.5, "concept_images": IMAGES + 1, "random_images": torch.cat([IMAGES] * 5)}
FUNCTIONS = {
    name: found
    for name in explainers.__all__
    if callable(found := getattr(explainers, name))
    and not inspect.isabstract(found)
    and not (inspect.isclass(found) and issubclass(found, Exception))
}
RESULTS = set(
    "Description Display Evaluation Explanation Factors FullGradients GradientLog Intervention Layer LayerDescription "
    "Method Metric ModelComparison Option Partial PathStep Randomization Recommendation Region SmallestRegion Smoothed "
    "ValueTrace WeightedSum Choice Range Concept Concepts FeatureVisualization ScaleConcepts Tcav".split()
)
"""Classes that the library creates, not its callers."""
NOT_TRIED = {"trace_attention", "check_explainer", "text_embedding", "keep_freed_memory", "recommend", "show_channels"}
"""Functions that need another model, take long, or only show results."""


SHARED = {"model", "images", "target", "forward", "through", *DEFAULTS}
CHEAP = {"samples": 2, "steps": 2, "budget": 0.05, "batch_size": 4, "channels": 4, "cells": 3}


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - RESULTS - NOT_TRIED))
def test_whatever_is_wrong_is_refused_by_an_explainer_error(name: str) -> None:
    """Each argument in turn gets strange values; what is refused is refused with a short message of the library.

    Those that all methods share are tried for a method of each kind.
    """
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    is_slow = name in METHODS or name == "feature_visualization"
    usual = {k: v for k, v in CHEAP.items() if is_slow and k in parameters}
    usual |= {k: GIVEN[k] for k, each in parameters.items() if k in GIVEN and each.default is each.empty}
    wrong = []
    for argument, parameter in parameters.items():
        is_open = parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        is_shared = name in METHODS and name not in SAMPLE and argument in SHARED
        if isinstance(parameter.default, bool) or is_open or is_shared or argument == "function":
            continue
        for value in STRANGE:
            try:
                result = FUNCTIONS[name](**(usual | {argument: value}))
                with result if hasattr(result, "__enter__") else nullcontext():
                    pass
            except (explainers.ExplainerError, ImportError) as error:
                assert isinstance(error, TypeError) or not isinstance(error, explainers.WrongType)
                text = str(error)
                assert "\n" not in text and len(text) < 600, text
                assert not any(part in text for part in ("(0): ", "tensor([", "array([", "[[")), text
            except Exception as error:
                if "required positional argument" not in str(error):
                    wrong.append(f"{argument}={value!r:.40}: {type(error).__name__}: {str(error)[:80]}")
    assert not wrong, "\n".join(wrong)


# Keywords that methods share, also in methods of your own


def unregistered(
    model: nn.Module, images: Tensor, target: Any = None, *, steps: int = 4, **cost: Unpack[Cost]
) -> Tensor:
    """Integrated gradients, with the shared keywords passed on."""
    return explainers.integrated_gradients(model, images, target, steps=steps, **cost)


@pytest.fixture
def registered() -> Iterator[Any]:
    yield explainers.registry.method(family="gradient", returns="pixels", title="Own", paper="none")(unregistered)
    del METHODS["unregistered"], unregistered.__signature__  # type: ignore[attr-defined]


def test_an_own_method_may_declare_them(registered: Any) -> None:
    net, images, chosen = residual(), random_images(), METHODS["unregistered"]
    assert chosen.long and list(chosen.options) == ["precision"]
    assert chosen.options["precision"].choices == ("float32", "bf16")
    assert list(chosen.parameters)[3:] == ["steps", *DEFAULTS]
    expected = explainers.integrated_gradients(net, images, 1, steps=4, batch_size=3)  # of equal rounding
    assert torch.equal(registered(net, images, 1, forward=lambda x: net(x), batch_size=3), expected)
    assert explain("unregistered", net, images, 1, budget=60).total == 4
    with pytest.raises(BadOption, match=r"Did you mean 'batch_size'\? .*batch_size, precision, progress, budget, "):
        registered(net, images, internal_batch_size=3)
    with pytest.raises(BadOption, match="'fast' is not valid"):
        registered(net, images, precision="fast")


def test_checks_and_smoothing_find_them_in_a_function() -> None:
    report = explainers.check_explainer(unregistered, steps=2)
    assert report, report
    skipped = [
        each.name for each in report.checks if each.passed is None and each.name in ("progress_and_stop", "batch_size")
    ]
    assert not skipped
    seen: list[explainers.Partial] = []
    explainers.smooth(unregistered, sigma=0.1, samples=2)(
        residual(), random_images(1), 1, progress=seen.append, batch_size=1
    )
    assert any(0 < partial.fraction < 0.5 for partial in seen), "progress within a sample"
