"""What the page knows about channels from an index: only of the network that it was made with."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from PIL import Image, ImageColor

import explainers
from saliscope import limits
from saliscope.compute import model_cache, units
from saliscope.compute.answers import LoadedModel
from saliscope.compute.channels import engine as channels
from saliscope.compute.channels import messages
from saliscope.compute.channels.answers import Measures
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.runs.units import open_index
from tests.saliscope.compute.asking import CAT, MODEL, SMALL, inputs, last_steps
from tests.support import unit_indices

LAYER, CHANNELS = "stages.2", 40


@pytest.fixture
def shipped(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put an index of one layer in the place of the one that ships with the built-in network."""
    path = tmp_path / "shipped.parquet"
    monkeypatch.setattr(units, "SHIPPED", path)
    units.use(None)
    yield unit_indices.write_file(path, loaded.model, unit_indices.unit_rows(LAYER, CHANNELS, {7: "tabby"}))
    units.use(None)


@pytest.fixture
def folder(shipped: Path, loaded: LoadedModel, tmp_path: Path) -> Path:
    """Write another index of this layer, with photos."""
    tables = unit_indices.unit_rows(LAYER, CHANNELS, {8: "owl"}), unit_indices.top_rows(LAYER, CHANNELS)
    return unit_indices.write_folder(tmp_path / "units", loaded.model, *tables)


def other_weights(loaded: LoadedModel) -> LoadedModel:
    """Return a network with the same name and layers."""
    network = copy.deepcopy(loaded.model.network)
    with torch.no_grad():
        next(network.parameters()).add_(1e-3)
    return replace(loaded, model=replace(loaded.model, network=network))


def found(loaded: LoadedModel, session: str = "") -> units.LayerUnits:
    known = units.of_layer(loaded, LAYER, session)
    assert known is not None
    return known


def test_channels_of_the_indexed_network_have_names_with_their_test(shipped: Path, loaded: LoadedModel) -> None:
    for name in (MODEL, SMALL):  # the same weights
        known = found(model_cache.load(name))
        assert [unit.channel for unit in known.units] == list(range(CHANNELS)) and known.images == unit_indices.COUNT
        assert [(unit.channel, unit.name, unit.auc) for unit in known.units if unit.name] == [(7, "tabby", 0.97)]
    assert units.of_layer(loaded, "head") is None
    assert units.of_layer(other_weights(loaded), LAYER) is None


def test_names_by_an_encoder_say_so_except_those_that_a_visitors_labels_replace(
    shipped: Path, folder: Path, loaded: LoadedModel
) -> None:
    rows = unit_indices.unit_rows(LAYER, CHANNELS, {7: "tabby", 8: "bird"})
    unit_indices.write_file(shipped, loaded.model, rows, names_by="words.txt and clip")
    units.keep("visitor", open_index(folder))
    own = units.of_layer(loaded, LAYER, "visitor")
    assert own is not None
    for known, channel, says in ((found(loaded), 8, True), (own, 7, True), (own, 8, False)):
        unit = known.units[channel]
        texts = messages.unit_test(unit), " ".join(messages.unit(unit, known))
        assert unit.name and [", by words.txt and clip" in texts[0], "by words.txt and clip:" in texts[1]] == [says] * 2
    units.forget("visitor")


def test_a_missing_or_damaged_index_is_left_out(
    shipped: Path, loaded: LoadedModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest channels and the images are optional."""
    rows, whole = unit_indices.unit_rows(LAYER, CHANNELS, {}), shipped.read_bytes()
    known = None

    def save(table: pa.Table) -> Callable[[Path], object]:
        return partial(unit_indices.write_file, model=loaded.model, units=table)

    for name, write, is_reported in (
        ("missing", lambda path: None, False),
        ("cut", lambda path: path.write_bytes(whole[:-100]), True),
        ("no settings", lambda path: pa.parquet.write_table(rows, path), True),
        ("no layers", save(rows.drop_columns("layer")), True),
        ("a channel is missing", save(rows.slice(1)), False),
        ("names only", save(rows.drop_columns(["nearest", "image"])), False),
    ):
        assert known is None
        monkeypatch.setattr(units, "SHIPPED", shipped.with_name(f"{name}.parquet"))
        write(units.SHIPPED)
        units.use(None)
        known = units.of_layer(loaded, LAYER)
        assert any(f"{name}.parquet" in message for message in caplog.messages) == is_reported
    assert known and known.units[7].nearest is None and not known.sprites


def test_crops_have_their_photos_and_the_order_by_effect(shipped: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    tops = (unit_indices.top_rows(LAYER, CHANNELS, by) for by in ("activation", "effect"))
    tables = unit_indices.unit_rows(LAYER, CHANNELS, {}), pa.concat_tables(tops), unit_indices.photo_rows()
    folder = unit_indices.write_folder(tmp_path / "units", loaded.model, *tables)
    units.use(partial(open_index, folder))
    known = found(loaded).units
    for crops in (known[3].crops, known[3].effects):
        assert [crop.photo for crop in crops] == unit_indices.photo_rows()["photo"].to_pylist()
    assert not any(unit.name for unit in known), "the user's own index comes first"
    assert (crops[1].value, crops[1].label, crops[1].box) == (4.5, "tabby", (0, 0, 0.5, 1))
    (folder / "photos.parquet").unlink()  # as of an earlier version
    units.use(partial(open_index, folder))
    assert [crop.photo for crop in found(loaded).units[3].crops] == [None, None]


def test_a_visitors_index_adds_images_and_names_for_their_session_only(
    shipped: Path, folder: Path, loaded: LoadedModel
) -> None:
    """The shipped index keeps its names and synthetic images, except where the visitor's images give a name."""
    units.keep("visitor", open_index(folder))
    known, other = found(loaded, "visitor"), found(loaded, "other")
    assert {unit.channel: unit.name for unit in known.units if unit.name} == {7: "tabby", 8: "owl"}
    assert len(known.units[3].crops) == 2 and known.own == unit_indices.COUNT
    assert known.sprites[units.SYNTHETIC] == other.sprites[units.SYNTHETIC]
    assert [unit.name for unit in other.units if unit.name] == ["tabby"] and not other.units[3].crops
    assert units.of_layer(other_weights(loaded), LAYER, "visitor") is None

    image = known.sprites[units.TOP]
    assert units.sprite(image)
    runs.end("visitor")
    assert units.of_layer(loaded, LAYER, "visitor") == other and units.sprite(image) is None


def test_only_the_newest_indices_of_visitors_are_kept(
    shipped: Path, folder: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDICES", 2)
    for session in ("first", "second", "third"):
        units.keep(session, open_index(folder))
    owned = {session: found(loaded, session=session).own > 0 for session in ("first", "second", "third")}
    assert owned == {"first": False, "second": True, "third": True}
    for session in owned:
        units.forget(session)


def test_an_index_of_another_network_is_refused_and_logged(
    folder: Path, loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    other = other_weights(loaded)
    unit_indices.write_folder(folder, other.model, *(unit_indices.unit_rows(LAYER, CHANNELS, {8: "owl"}),) * 2)
    units.use(partial(open_index, folder))
    assert [unit.name for unit in found(loaded).units if unit.name] == ["tabby"], "that of the built-in network"
    with pytest.raises(Refused) as refused:
        open_index(folder, loaded.model)
    assert str(refused.value) in caplog.messages


def colors(name: str, numbers: tuple[int, ...]) -> list[Any]:
    """Return the colors of these channels in a sprite."""
    data = units.sprite(name)
    assert data is not None
    with Image.open(io.BytesIO(data)) as file:
        sheet, half = file.convert("RGBA"), units.SIDE // 2
    cells = (divmod(number, units.ACROSS) for number in numbers)
    return [sheet.getpixel((units.SIDE * column + half, units.SIDE * row + half)) for row, column in cells]


def test_all_images_of_a_layer_are_one_file_whose_name_changes_with_them(
    shipped: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged image, or none, leaves its place empty."""
    name, numbers = found(loaded).sprites[units.SYNTHETIC], (0, 7, 8, CHANNELS - 1)
    for number, color in zip(numbers, colors(name, numbers), strict=True):
        wanted = ImageColor.getrgb(unit_indices.COLORS[number % len(unit_indices.COLORS)])
        assert max(abs(a - b) for a, b in zip(color[:3], wanted, strict=True)) < 25

    rows: list[dict[str, Any]] = unit_indices.unit_rows(LAYER, CHANNELS, {}).to_pylist()
    rows[7]["image"], rows[8]["image"] = b"damaged", None
    monkeypatch.setattr(units, "SHIPPED", shipped.with_name("other.parquet"))
    unit_indices.write_file(units.SHIPPED, loaded.model, pa.Table.from_pylist(rows))
    units.use(None)
    other = found(loaded).sprites[units.SYNTHETIC]
    assert other != name
    assert [color[3] for color in colors(other, numbers)] == [255, 0, 0, 255]


def test_channels_are_measured_at_a_cell(loaded: LoadedModel) -> None:
    """Oracle: the library's feature maps."""
    maps = explainers.feature_maps(*inputs(), layer="head")[0]
    request = Request(CAT, model=MODEL)
    measured = last_steps(request, channels.measure, kind="here", cell=(2, 5))[Measures]
    torch.testing.assert_close(measured.values, maps[:, 2, 5])
    for cell in ((7, 0), (0, -1), None):
        with pytest.raises(Refused):
            last_steps(request, channels.measure, kind="here", cell=cell)
