"""Fixture: an engine without its background thread, and its first network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def loaded() -> Iterator[object]:
    """Return the network, which is loaded once for all modules; requests do not wait for a thread."""
    from saliscope.session import model_cache  # some modules need no network
    from tests.saliscope.session.asking import MODEL

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_cache, "wait", lambda *_: iter(()))
        patch.setattr(model_cache, "start", lambda *_: None)
        yield model_cache.load(MODEL)
