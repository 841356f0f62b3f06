"""The list of models on the page, and in the API: nothing is offered as a download that is forbidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from saliscope.page.panel import panel
from saliscope.page.serving import endpoints
from saliscope.session import model_cache
from tests.support.catalog import isolate_catalog


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_catalog(monkeypatch, tmp_path)


def test_offline_no_model_is_offered_as_a_download(monkeypatch: pytest.MonkeyPatch, loaded: object) -> None:
    listed = {name: (label, columns) for label, name, columns in panel.models(model_cache.list_models())}
    assert next(iter(listed)) == "efficientnet_lite0" and listed["efficientnet_lite0"][1][-1] == "on disk"
    label, columns = listed["resnet50"]
    assert label.endswith("· not downloaded (offline)") and columns[-1] == "offline"
    assert not [name for name, (label, columns) in listed.items() if "to download" in label or "download" in columns]
    found = {each["name"]: (each["cached"], each["offline"]) for each in endpoints.list_models()}
    assert found["efficientnet_lite0"] == (True, False) and found["resnet50"] == (False, True)

    monkeypatch.setenv("SALISCOPE_OFFLINE", "0")
    (row,) = [
        (label, columns) for label, name, columns in panel.models(model_cache.list_models()) if name == "resnet50"
    ]
    assert row[0].endswith("MB to download") and row[1][-1] == "download"


def test_offline_usable_models_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list shows its first hundred names; a model of the owner's folder is after torchvision's without this order."""
    (tmp_path / "own.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Identity()\n")
    monkeypatch.setenv("SALISCOPE_MODELS_DIR", str(tmp_path))
    infos = sorted(model_cache.list_models(), key=lambda info: info.cached)
    states = [columns[-1] for _, _, columns in panel.models(infos)]
    assert states[:2] == ["on disk", "on disk"] and set(states[2:]) == {"offline"}
