"""Fixture: the first network, loaded as the page loads it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def loaded() -> Any:
    """Return the default network once the page has loaded it."""
    from saliscope.compute import model_cache  # some modules need no network

    model_cache.start("efficientnet_lite0")
    model_cache.ready.wait()
    return model_cache.load(model_cache.first_model())
