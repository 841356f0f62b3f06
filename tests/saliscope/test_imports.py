"""What the page needs before torch, which takes seconds to import, and what never needs torchvision."""

from __future__ import annotations

import subprocess
import sys

from tests.project.sources import ROOT, files, module_of

SESSION = (
    "saliscope.compute.api_messages saliscope.compute.text_messages saliscope.compute.request "
    "saliscope.compute.bundles.links saliscope.compute.erase.second saliscope.compute.lab.experiments "
    "saliscope.compute.lab.expressions saliscope.compute.methods.costs "
    "saliscope.compute.methods.explanations saliscope.compute.methods.lines saliscope.compute.methods.papers"
).split()
"""Texts, requests and plans that are not in `jobs` and not called `messages`."""
LIGHT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, f"{name} imports torch"
"""
EXPLAIN = """
import importlib, sys
from saliscope import zoo
from saliscope.images import examples
from saliscope.compute import engine, model_cache
from saliscope.compute.answers import Answer, Stages
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request

assert "resnet50" in [info.name for info in zoo.list_models()] and zoo.missing_built_in() == ""
model_cache.load("efficientnet_lite0")
model_cache.ready.set()
path = str(examples.all_examples()["dog"].path)
steps = list(engine.explain(Request(path), runs.Run(60.0)))
answer = next(step for step in steps if isinstance(step, Answer))
assert answer.name == "German shepherd" and isinstance(steps[-1], Stages)
for name in sys.argv[1:]:
    importlib.import_module(name)
assert not {"torchvision", "torch._dynamo"} & set(sys.modules)
"""


def run(code: str, *names: str) -> None:
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_texts_jobs_and_requests_do_not_import_torch() -> None:
    modules = [module_of(path) for folder in ("compute", "images", "cli") for path in files(f"saliscope/{folder}")]
    names = [name for name in modules if name.endswith("messages") or name.startswith("saliscope.compute.jobs.")]
    names += [name for name in modules if name.startswith(("saliscope.images", "saliscope.cli"))]
    names = [name for name in names if not name.startswith("saliscope.images.edits.tensors")]
    assert len(names) > 40
    run(LIGHT, "saliscope", "saliscope.limits", "saliscope.zoo.settings", "saliscope.zoo.names", *SESSION, *names)


def test_an_explanation_of_the_built_in_network_does_not_import_torchvision() -> None:
    """Nor does anything else that answers a request; `measure` is a script."""
    names = [module_of(path) for path in files("saliscope/compute")]
    run(EXPLAIN, *(name for name in names if name != "saliscope.compute.methods.measure"))
