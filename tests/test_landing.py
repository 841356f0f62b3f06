"""The stored answer against the engine's, and when it is shown."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest
import torch

from ui import examples, landing
from ui.engine import model_cache


def values(packed: dict[str, Any]) -> torch.Tensor:
    """The values of a packed map."""
    kind = {"float32": torch.float32, "float16": torch.float16}[packed["dtype"]]
    raw = torch.frombuffer(bytearray(base64.b64decode(packed["b64"])), dtype=kind).float()
    return (raw * packed.get("scale", 1)).view(packed["h"], packed["w"])


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOOKLENS_MODEL", "HOOKLENS_MODELS"):
        monkeypatch.delenv(name, raising=False)


def test_the_stored_answer_equals_the_engines(no_settings: None) -> None:
    """When this fails: `python -m ui.landing`."""
    kept, made = landing.stored("auto"), json.loads(json.dumps(landing.made()))

    assert kept is not None
    for name in ("example", "model", "package", "choices", "guide", "network"):
        assert kept[name] == made[name], name
    assert [part for part in kept["status"] if "%" not in str(part)] == [p for p in made["status"] if "%" not in str(p)]
    torch.testing.assert_close(values(kept["view"]["map"]), values(made["view"]["map"]), rtol=1e-3, atol=1e-4)
    assert kept["view"]["crop"] == made["view"]["crop"] and kept["view"]["words"] == made["view"]["words"]
    for a, b in zip(kept["strip"]["stages"], made["strip"]["stages"], strict=True):
        assert (a["layer"], a["grid"]) == (b["layer"], b["grid"])
        torch.testing.assert_close(values(a["map"]), values(b["map"]), rtol=1e-2, atol=1e-3)
    shares = [{each["name"]: each["share"] for each in one["classes"]["items"]} for one in (kept, made)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-3)


def test_the_stored_answer_is_shown_only_for_the_same_model(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert landing.stored("auto") and landing.stored("efficientnet_lite0")
    assert landing.stored("resnet50") is None, "another model was asked for"

    monkeypatch.setenv("HOOKLENS_MODELS", "resnet50")
    assert landing.stored("auto") is None, "the host does not offer it"
    monkeypatch.setenv("HOOKLENS_MODELS", "resnet50, efficientnet_lite0")
    assert landing.stored("auto")

    monkeypatch.setattr(landing.importlib.util, "find_spec", lambda name: None)
    assert landing.stored("auto") is None, "its weights are not installed"


def test_another_first_example_invalidates_the_stored_answer(
    no_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reordered = dict(reversed(examples.all_examples().items()))
    monkeypatch.setattr(examples, "all_examples", lambda: reordered)

    assert landing.stored("auto") is None


def test_the_variable_requests_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "_requested", "auto")
    monkeypatch.setenv("HOOKLENS_MODEL", "vgg11")

    assert model_cache.requested_model() == "vgg11"


def test_reading_the_stored_answer_imports_no_torch() -> None:
    """It is shown while torch is being imported."""
    import subprocess
    import sys

    code = (
        "import sys; from ui.serving import gradio_setup; from ui import landing\n"
        "landing.stored('auto'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=examples.ASSETS.parent).returncode == 0
    assert isinstance(model_cache.ready, threading.Event)
