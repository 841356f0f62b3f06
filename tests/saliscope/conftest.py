"""Fixture: one app for all tests that need a running one with default settings."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from saliscope.page.serving import gradio_setup  # noqa: F401 before gradio, which would write type stubs for a second
from tests.saliscope.browser.conftest import served


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the app with several models; set SALISCOPE_ADDRESS to use a running one."""
    if given := os.environ.get("SALISCOPE_ADDRESS"):
        yield given.rstrip("/")
        return
    with served(tmp_path_factory.mktemp("app"), "-m", "tests.saliscope.browser.models_app") as address:
        yield address
