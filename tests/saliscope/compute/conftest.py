"""Fixtures: an engine without its background thread, its first network, and images and networks of blobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from saliscope.compute.answers import Answer


@pytest.fixture(scope="module")
def loaded() -> Iterator[object]:
    """Return the network, which is loaded once for all modules; requests do not wait for a thread."""
    from saliscope.compute import model_cache  # some modules need no network
    from tests.saliscope.compute.asking import MODEL

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_cache, "wait", lambda *_: iter(()))
        patch.setattr(model_cache, "start", lambda *_: None)
        yield model_cache.load(MODEL)


@pytest.fixture(scope="module")
def new_dog(loaded: object, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a copy of the dog with other bytes: no cache has a result for it, and none is left for other tests."""
    from tests.saliscope.compute.asking import DOG

    path = tmp_path_factory.mktemp("dog") / "dog.jpg"
    path.write_bytes(Path(DOG).read_bytes() + str(path).encode())  # decoders ignore what follows the image
    return str(path)


@pytest.fixture(scope="module")
def answers(new_dog: str) -> dict[str, Answer]:
    """Return the answers for the dog by methods of several kinds; no experiment or check of them is known."""
    from saliscope.compute.request import Request
    from tests.saliscope.compute.asking import answered

    methods = ("grad_cam", "hires_cam", "saliency", "eigen_cam", "input_x_gradient", "random_control")
    return {method: answered(Request(new_dog, method=method)) for method in methods}


@pytest.fixture
def blob_models(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer "blobs_detection" and "blobs_segmentation"."""
    from saliscope.zoo import catalog
    from tests.support import dense_nets

    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))


@pytest.fixture
def blobs(tmp_path: Path) -> str:
    """Return an image of two red blobs and a green one."""
    from tests.support import dense_nets

    dense_nets.scene().save(tmp_path / "scene.png")
    return str(tmp_path / "scene.png")
