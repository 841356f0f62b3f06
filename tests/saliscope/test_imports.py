"""What the page needs before torch, which takes seconds to import, and what never needs torchvision."""

from __future__ import annotations

import subprocess
import sys

from tests.project.sources import ROOT, files, module_of

SESSION = (
    "saliscope.session.api_messages saliscope.session.text_messages saliscope.session.request "
    "saliscope.session.bundles.links saliscope.session.erase.second saliscope.session.lab.experiments "
    "saliscope.session.lab.expressions saliscope.session.methods.costs "
    "saliscope.session.methods.explanations saliscope.session.methods.lines saliscope.session.methods.papers"
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
from saliscope.images import examples
from saliscope.session import engine, model_cache
from saliscope.session.answers import Answer, Stages
from saliscope.session.jobs import runs
from saliscope.session.request import Request

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
    modules = [module_of(path) for folder in ("session", "images", "cli") for path in files(f"saliscope/{folder}")]
    names = [name for name in modules if name.endswith("messages") or name.startswith("saliscope.session.jobs.")]
    names += [name for name in modules if name.startswith(("saliscope.images", "saliscope.cli"))]
    names = [name for name in names if not name.startswith("saliscope.images.edits.tensors")]
    assert len(names) > 40
    run(LIGHT, "saliscope", "saliscope.limits", "saliscope.zoo.settings", "saliscope.zoo.names", *SESSION, *names)


def test_an_explanation_of_the_built_in_network_does_not_import_torchvision() -> None:
    """Nor does anything else that answers a request; `measure` is a script."""
    names = [module_of(path) for path in files("saliscope/session")]
    run(EXPLAIN, *(name for name in names if name != "saliscope.session.methods.measure"))
