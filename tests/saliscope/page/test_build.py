"""The page is built without torch, and served without torchvision and without changing other packages.

All its scripts fit in one module.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from saliscope.page import layout
from saliscope.page.first_paint import bundle
from tests.project.sources import ROOT, files, module_of
from tests.saliscope.browser.conftest import free_port

PAGE = ROOT / "saliscope" / "page"
OWN_STATE = {
    "PIL.Image.MAX_IMAGE_PIXELS": "a setting that Pillow documents",
    "gradio.context.Context.id": "counts components",
    "torch.utils.hooks.RemovableHandle.next_id": "counts hooks",
    "torch._custom_class_base._FakeScriptObject_cls": "imported by torch when it is needed",
}
"""What may change, and why."""
UNCHANGED = """
import os, sys, types, warnings
warnings.simplefilter("ignore")
import gradio, gradio_client, starlette.applications, fastapi, uvicorn, PIL.Image, torch
PACKAGES = ("gradio", "gradio_client", "starlette", "fastapi", "uvicorn", "PIL", "torch")
MISSING = object()

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
            for attribute, value in list(vars(module).items()):
                found[name, attribute] = value
                if isinstance(value, type) and getattr(value, "__module__", "") == name:
                    found |= {(name, attribute, each): inner for each, inner in list(vars(value).items())}
    return found

before = attributes()
from saliscope.compute import engine, model_cache
from saliscope.page import build, features
build.serve(build.build(), model="efficientnet_lite0", host="127.0.0.1", port=int(sys.argv[1]), block=False)
build.proxy.wanted.set()
assert model_cache.ready.wait(100)
after = attributes()
changed = [name for name, value in before.items() if after.get(name, MISSING) is not value]
known = {name[0] for name in before}
added = [name for name in after.keys() - before.keys() if name[0] in known]
added = [name for name in added if name[-1] != "__slotnames__"]  # which copying writes
added = [name for name in added if not isinstance(after[name], types.ModuleType)]  # which were imported meanwhile
assert len(before) > 50_000
for name in changed + added:
    print("changed:", ".".join(name), flush=True)

import importlib
from saliscope import zoo
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request
from saliscope.images import examples
assert "resnet50" in [info.name for info in zoo.list_models()] and zoo.missing_built_in() == ""
steps = list(engine.explain(Request(str(examples.all_examples()["dog"].path)), runs.Run(60.0)))
assert "German shepherd" in [getattr(step, "name", "") for step in steps]
for name in sys.argv[2:]:
    importlib.import_module(name)
assert not {"torchvision", "torch._dynamo"} & set(sys.modules)
print("explained", flush=True)
os._exit(0)  # the server runs in threads
"""
LIGHT = """
import os, sys
from saliscope.page import build
assert os.environ.get("GRADIO_ANALYTICS_ENABLED") == "False", "set before gradio is imported"
demo = build.build()
drawn = [each for each in demo.blocks.values() if each.get_block_name() == "html"]
own = [each for each in demo.fns.values() if each.targets and each.targets[0][1] != "unload"]
assert len(drawn) == len(own) == 1 and len(demo.blocks) <= 30, (drawn, own)
print([name for name in sys.modules if name.startswith(("torch", "saliscope.page.features"))])
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_nothing_of_another_package_is_replaced_and_nothing_that_answers_imports_torchvision() -> None:
    """Every attribute of their modules and classes is the same object after the page is built and served."""
    printed = run(UNCHANGED, str(free_port()), *(module_of(path) for path in files("saliscope/compute")))
    assert set(re.findall(r"^changed: (.*)$", printed, re.M)) - OWN_STATE.keys() == set()
    assert printed.endswith("explained\n")


def test_the_page_is_one_component_with_one_event_and_is_built_without_torch() -> None:
    """The other components are parameters of the API."""
    assert run(LIGHT).splitlines()[-1] == "[]"


# The scripts


SCRIPTS = [path for path in sorted(PAGE.rglob("*.js")) if path.parent.name != "notebook"]
"""The scripts of the page; those of notebooks are joined by another one."""


def test_the_bundle_has_all_scripts_and_styles_and_is_valid(tmp_path: Path) -> None:
    text = bundle.build().decode("utf-8")
    assert len(re.findall(r"^const m\d+ = \(\(\) => \{$", text, re.M)) == len(SCRIPTS), "no import leads to a script"
    assert not re.search(r"^\s*import\b", text, re.M) and re.findall(r"^export .*", text, re.M)[1:] == []
    for sheet in PAGE.rglob("*.css"):
        assert json.dumps(sheet.read_text(encoding="utf-8"), ensure_ascii=False)[1:-1] in text, sheet
    for path in SCRIPTS:
        for names, source in bundle.IMPORT.findall(bundle.COMMENT.sub("", path.read_text(encoding="utf-8"))):
            offered = bundle.EXPORT.findall((path.parent / source).read_text(encoding="utf-8"))
            assert {name.split(" as ")[0].strip() for name in names.split(",")} - {""} <= {*offered}, (path, source)
    assert [part["module"] for part in layout.schema() if f'"{part["module"]}": m' not in text] == []
    if node := shutil.which("node"):
        (tmp_path / "page.mjs").write_text(text, encoding="utf-8")
        done = subprocess.run([node, "--check", str(tmp_path / "page.mjs")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
