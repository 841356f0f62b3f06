"""Fixtures: one app for all tests that need a running one, and no results of experiments of earlier tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import saliscope.page  # noqa: F401 settings of gradio, before it is imported
from saliscope.compute import removal
from saliscope.compute.results_cache import Recent
from tests.saliscope.browser.conftest import served


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the app with several models; set SALISCOPE_ADDRESS to use a running one."""
    if given := os.environ.get("SALISCOPE_ADDRESS"):
        yield given.rstrip("/")
        return
    with served(tmp_path_factory.mktemp("app"), "-m", "tests.saliscope.browser.models_app") as address:
        yield address


@pytest.fixture
def without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """No experiment is known before a test; that of an earlier test would change the headline."""
    monkeypatch.setattr(removal, "known_removals", Recent())
