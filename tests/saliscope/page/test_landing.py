"""The stored answer: it equals the computed answer, and is only shown for the same model and example."""

from __future__ import annotations

import base64
import json
import re
import threading
from typing import Any

import pytest
import torch

from saliscope.images import examples
from saliscope.page.overlay import landing
from saliscope.session import model_cache


def values(packed: dict[str, Any]) -> torch.Tensor:
    """The values of a packed map."""
    kind = {"float32": torch.float32, "float16": torch.float16}[packed["dtype"]]
    raw = torch.frombuffer(bytearray(base64.b64decode(packed["b64"])), dtype=kind).float()
    return (raw * packed.get("scale", 1)).view(packed["h"], packed["w"])


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SALISCOPE_MODEL", "SALISCOPE_MODELS"):
        monkeypatch.delenv(name, raising=False)


def test_the_stored_answer_equals_the_engines(no_settings: None) -> None:
    """When this fails: `python -m saliscope.page.overlay.landing`."""
    stored, computed = landing.load_stored("auto"), json.loads(json.dumps(landing.compute()))

    assert stored is not None
    for name in ("example", "model", "package", "choices", "guide", "network"):
        assert stored[name] == computed[name], name
    assert [part for part in stored["status"] if "%" not in str(part)] == [
        p for p in computed["status"] if "%" not in str(p)
    ]
    assert [re.sub(r"\d+%", "%", text) for text in stored["headline"]] == [
        re.sub(r"\d+%", "%", text) for text in computed["headline"]
    ]
    torch.testing.assert_close(values(stored["view"]["map"]), values(computed["view"]["map"]), rtol=1e-3, atol=1e-4)
    assert stored["view"]["crop"] == computed["view"]["crop"] and stored["view"]["words"] == computed["view"]["words"]
    for a, b in zip(stored["strip"]["stages"], computed["strip"]["stages"], strict=True):
        assert [a["layer"], *values(a["map"]).shape] == [b["layer"], *values(b["map"]).shape]
        torch.testing.assert_close(values(a["map"]), values(b["map"]), rtol=1e-2, atol=1e-3)
    shares = [{each["name"]: each["share"] for each in one["classes"]["items"]} for one in (stored, computed)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-3)


def test_the_stored_answer_is_shown_only_for_the_same_model(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert landing.load_stored("auto") and landing.load_stored("efficientnet_lite0")
    assert landing.load_stored("resnet50") is None, "another model is requested"

    monkeypatch.setenv("SALISCOPE_MODELS", "resnet50")
    assert landing.load_stored("auto") is None, "the host does not offer it"
    monkeypatch.setenv("SALISCOPE_MODELS", "resnet50, efficientnet_lite0")
    assert landing.load_stored("auto")

    monkeypatch.setattr(landing.importlib.util, "find_spec", lambda name: None)
    assert landing.load_stored("auto") is None, "its weights are not installed"


def test_another_first_example_invalidates_the_stored_answer(
    no_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reordered = dict(reversed(examples.all_examples().items()))
    monkeypatch.setattr(examples, "all_examples", lambda: reordered)

    assert landing.load_stored("auto") is None


def test_the_variable_requests_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "_requested", "auto")
    monkeypatch.setenv("SALISCOPE_MODEL", "vgg11")

    assert model_cache.requested_model() == "vgg11"


def test_reading_the_stored_answer_imports_no_torch() -> None:
    """It is shown while torch is being imported."""
    import subprocess
    import sys

    code = (
        "import sys; from saliscope.page.serving import gradio_setup; from saliscope.page.overlay import landing\n"
        "landing.load_stored('auto'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=examples.ASSETS.parent).returncode == 0
    assert isinstance(model_cache.ready, threading.Event)
