"""An index of units in a store, of networks that do not classify, of tokens, and of large photos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from explainers import list_layers
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import units
from saliscope.zoo import Model, Preparation, catalog, load_model
from tests.saliscope.runs.test_dataset_stores import COUNT, server, small_model, source
from tests.support import dense_nets
from tests.support.token_nets import vit

__all__ = ["server", "source"]  # fixtures


def index(source: str, out: str | Path, model: Model, report: Callable[..., None] | None = None, **settings):
    job = units.prepare(units.IndexSettings(top=2, batch_size=4, **settings), source, out, model=model)
    units.write_index(job, decode=open_image, workers=0, report=report)
    return units.open_index(out, model)


@pytest.mark.parametrize("store", ["memory", "s3"])
def test_an_index_in_a_store_equals_a_local_one_and_resumes(store, request, source, tmp_path):
    if store == "s3":
        request.getfixturevalue("server")
    out = f"{store}://bucket/{tmp_path.name}/units"

    def stop(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index(source, out, small_model(), stop, layers=("1",))
    with pytest.raises(Refused, match="not finished"):
        units.open_index(out)
    done = []
    found = index(source, out, small_model(), lambda n, total: done.append(n), layers=("1",))
    local = index(source, tmp_path / "units", small_model(), layers=("1",))
    assert done[0] == 8, "finished batches are kept"
    assert found.top.equals(local.top) and found.units["channel"].equals(local.units["channel"])
    assert found.photos is not None and len(found.photos) > 0
    assert found.manifest["counts"]["images"] == COUNT - 1


@pytest.mark.parametrize("task", ["segmentation", "detection"])
def test_networks_that_do_not_classify_have_an_index(task, source, tmp_path, monkeypatch):
    """Segmentation networks also have effects; a detector may find nothing in an image."""
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    model = load_model(f"blobs_{task}")
    layer = next(layer.name for layer in list_layers(model.network, model.prepare(dense_nets.scene())) if layer.grid)
    found = index(source, tmp_path / "units", model, layers=(layer,))
    assert len(found.top) == 2 * len(found.units)
    if task == "detection":
        with pytest.raises(Refused, match="detect nothing"):
            index(source, tmp_path / "effects", model, layers=(layer,), effects="predicted")
    else:
        found = index(source, tmp_path / "effects", model, layers=(layer,), effects="predicted")
        assert len(found.top) == 4 * len(found.units)


def test_tokens_have_an_index(source, tmp_path):
    network = vit().float().eval()
    side = getattr(network, "image_size", 32)
    model = Model("tokens", network, [*"abc"], Preparation(side, side, (0.5,) * 3, (0.5,) * 3))
    layers = [layer for layer in list_layers(network, model.prepare(dense_nets.scene())) if layer.grid]
    found = index(source, tmp_path / "units", model, layers=(layers[-1].name,), effects="predicted")
    assert len(found.units) == layers[-1].shape[layers[-1].shape.index(found.units.num_rows)]


def test_a_layer_without_positions_is_refused_before_any_image_is_read(source, tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)).eval()
    model = Model("flat", network, [*"abcd"], Preparation(32, 32, (0.5,) * 3, (0.5,) * 3))
    with pytest.raises(ValueError, match="'1'"):
        index(source, tmp_path / "units", model, layers=("1",))
    assert not (tmp_path / "units").exists() or not list((tmp_path / "units").iterdir())
