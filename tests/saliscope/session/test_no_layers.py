"""A network without layers that have a grid, such as one of linear layers, is explained by methods without a layer."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.errors import Refused
from saliscope.session import engine, model_cache
from saliscope.session.answers import Answer, Stages
from saliscope.session.channels import engine as channels
from saliscope.session.jobs.runs import Run
from saliscope.session.request import Request
from tests.saliscope.session.asking import DOG
from tests.support.catalog import isolate_catalog

LINEAR = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 5))
"""


@pytest.fixture
def linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Offer the network in an engine without its background thread."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setattr(model_cache, "_loaded", OrderedDict())
    (tmp_path / "linear.py").write_text(LINEAR)
    name = zoo.add(f"{tmp_path / 'linear.py'}:build")
    with pytest.warns(UserWarning, match="preprocessing of"):
        model_cache.load(name)
    monkeypatch.setattr(model_cache, "ready", done := model_cache.threading.Event())
    done.set()
    return name


def test_the_default_is_integrated_gradients_and_the_map_is_the_library_map(linear: str) -> None:
    loaded = model_cache.load(linear)
    assert loaded.layers == [] and not loaded.default

    steps = list(engine.explain(Request(DOG, model=linear), Run(60.0)))

    answer = next(step for step in steps if isinstance(step, Answer))
    assert answer.settings.method.name == "integrated_gradients" and not answer.settings.notes
    images = loaded.model.prepare(Image.open(DOG).convert("RGB"))
    options = {"target": answer.target, "steps": answer.options["steps"]}
    expected = explainers.explain("integrated_gradients", loaded.model.network, images, **options).map[0]
    torch.testing.assert_close(answer.map, expected, rtol=1e-3, atol=1e-5)
    assert not any(isinstance(step, Stages) and step.maps for step in steps)


def test_methods_that_need_a_layer_are_refused_with_the_reason(linear: str) -> None:
    listed = {method.name for method in model_cache.list_methods(model_cache.load(linear))}
    assert {"saliency", "lrp", "occlusion", "rise"} <= listed and not {"grad_cam", "score_cam", "le_grad"} & listed
    steps = list(engine.explain(Request(DOG, model=linear, method="grad_cam"), Run(60.0)))
    (note,) = next(step for step in steps if isinstance(step, Answer)).settings.notes
    assert note.startswith("Grad-CAM does not support this network: No layer of it has cells with positions")
    assert "Integrated gradients" in note


def test_its_channels_are_refused(linear: str) -> None:
    with pytest.raises(Refused, match="No layer"):
        list(channels.sheet(Request(DOG, model=linear), Run(60.0)))
