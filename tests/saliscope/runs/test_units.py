"""An index of units: its tables, names and thumbnails, stores, a stop, and networks of all kinds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageStat
from pyarrow import parquet as pq
from torch import nn

from explainers import index_units, list_layers
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import units
from saliscope.runs.units import tables
from saliscope.runs.units.tables import nearest_units
from saliscope.zoo import Model, Preparation, catalog, load_model
from saliscope.zoo.weights import weights_hash
from tests.saliscope.runs.test_dataset_stores import small_model
from tests.support import dense_nets

COLORS = {"red": 0, "green": 1, "blue": 2}
COUNT = 24
"""Images of each color."""


def color_model(scale: float = 1.0) -> Model:
    """Channels 0 to 2 of the layer respond to a color, channel 3 to nothing, and channel 4 to brightness."""
    torch.manual_seed(0)
    conv, head = nn.Conv2d(3, 5, 4, 4), nn.Linear(5, 3)
    with torch.no_grad():
        conv.weight.zero_()
        conv.bias.zero_()
        for channel in range(3):
            conv.weight[channel, channel] = scale / 16
        conv.bias[3], conv.weight[4] = -1.0, 1 / 48
    layers = conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head
    return Model("colors", nn.Sequential(*layers).eval(), list(COLORS), Preparation(32, 32, (0.0,) * 3, (1.0,) * 3))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write noise of three colors, in one folder for each, and a file that is not an image."""
    folder = tmp_path_factory.mktemp("colors")
    for color, channel in COLORS.items():
        (folder / color).mkdir()
        for i in range(COUNT):
            generator = torch.Generator().manual_seed(100 * channel + i)
            noise = torch.randint(0, 128, (32, 32, 3), generator=generator, dtype=torch.uint8)
            noise[:8, 4:12, channel] = 250 - i  # in the upper left
            Image.fromarray(noise.numpy()).save(folder / color / f"{i:02d}.png")
    (folder / "blue" / "zz.png").write_bytes(b"no image")
    return str(folder)


def index(source: str, out: str | Path, model: Model | None = None, report=None, **settings) -> units.StoredIndex:
    chosen = units.IndexSettings(**{"layers": ("1",), "top": 3, "batch_size": 8, **settings})
    job = units.prepare(chosen, source, out, model=model or color_model())
    units.write_index(job, decode=open_image, workers=0, report=report)
    return units.open_index(out, model)


@pytest.fixture(scope="module")
def whole(source: str, tmp_path_factory: pytest.TempPathFactory) -> units.StoredIndex:
    return index(source, tmp_path_factory.mktemp("units"), effects="green")


def test_the_tables_are_those_of_index_units(whole, source):
    paths = sorted(str(path.relative_to(source)) for path in Path(source).glob("*/*.png") if path.name != "zz.png")
    model = color_model()
    images = torch.cat([model.preparation.tensor(Image.open(Path(source, path))) for path in paths])
    expected = index_units(model.network, images, "1", top=3, effects=1).layers["1"]
    assert (len(whole.units), len(whole.top)) == (5, 5 * 3 * 2)
    assert whole.units["mean"].to_pylist() == pytest.approx(expected.mean.tolist())
    assert whole.units["dead"].to_pylist() == [False, False, False, True, False]
    rows = whole.top.to_pylist()
    for by, top in (("activation", expected.top), ("effect", expected.effects)):
        for row in (row for row in rows if row["by"] == by and row["channel"] != 3):
            at = row["channel"], row["rank"]
            assert row["path"] == paths[int(top.images[at])]
            assert row["value"] == pytest.approx(float(top.values[at]), rel=1e-5)
            assert [row["row"], row["column"]] == top.cells[at].tolist()
    assert whole.manifest["counts"] == {
        "images": 3 * COUNT, "unreadable": 1, "skipped": 0, "channels": 5, "dead": 1, "named": 3,
    }  # fmt: skip
    assert list(whole.manifest["errors"]) == ["blue/zz.png"]


def test_channels_have_the_names_of_their_colors_with_a_test(whole):
    found = whole.units.to_pylist()
    assert [row["name"] for row in found] == ["red", "green", "blue", None, None]
    for row in found[:3]:
        assert 0.85 <= row["low"] <= row["auc"] <= row["high"] <= 1 and row["count"] == COUNT // 2
    assert all(row["auc"] is None for row in found[3:])


def is_green(image: Image.Image) -> bool:
    red, green, blue = ImageStat.Stat(image).mean
    return green > 180 > max(red, blue)


def test_boxes_are_parts_of_photos_which_are_stored_once_and_limited(whole, source, tmp_path, monkeypatch):
    photos = dict(zip(whole.photos["path"].to_pylist(), whole.photos["photo"].to_pylist(), strict=True))
    rows = whole.top.to_pylist()
    assert len(photos) == len(whole.photos) and set(photos) == {row["path"] for row in rows}
    row = next(row for row in rows if row["channel"] == 1 and row["by"] == "activation")
    assert row["label"] == "green" and row["top"] < 0.25 and 0.1 <= row["left"] < 0.4
    photo, thumbnail = (Image.open(io.BytesIO(data)) for data in (photos[row["path"]], row["thumbnail"]))
    sides = [photo.size[k % 2] * row[side] for k, side in enumerate(("left", "top", "right", "bottom"))]
    assert photo.size == (32, 32) and is_green(photo.crop([round(side) for side in sides]))
    assert thumbnail.format == "JPEG" and thumbnail.size == (4, 4) and is_green(thumbnail)
    monkeypatch.setattr(tables, "PHOTO_BYTES", 2000)
    small = index(source, tmp_path / "units").photos
    assert 0 < len(small) < len(whole.photos) and sum(map(len, small["photo"].to_pylist())) <= 2000


def test_the_nearest_units_are_those_with_the_highest_correlation():
    a, b = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    activations = torch.stack([a, 3 * a + 0.1 * b + 5, -a, torch.full_like(a, 2.0), a + b], 1)
    assert nearest_units(activations) == [[1, 4], [0, 4], None, None, [1, 0]]


def test_synthetic_images_excite_their_channel(source, tmp_path):
    """Also after a stop between two units. A dead channel has neither; the file has its settings."""
    model = color_model()

    def stop(done: int, total: int) -> None:
        if done > 3 * COUNT + 1:  # after all images
            raise Stopped

    with pytest.raises(Stopped):
        index(source, tmp_path, model, report=stop, synthetic=32)
    found = index(source, tmp_path, model, synthetic=32)
    rows = found.units.to_pylist()
    images = [row["image"] and Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows]
    assert images[3] is None and images[0].format is None and images[0].size == (32, 32)
    with torch.no_grad():
        peaks = model.network[:3](torch.cat([model.preparation.tensor(image) for image in images[:3]])).flatten(1)
    assert peaks[:, :3].argmax(1).tolist() == [0, 1, 2]
    assert rows[3]["nearest"] is None
    about = json.loads(found.units.schema.metadata[b"saliscope"])
    assert about["layers"] == ["1"] and about["indexed"] == 3 * COUNT and about["weights_sha256"]


def test_the_shipped_index_is_of_the_built_in_network():
    path = Path(__file__).resolve().parents[3] / "assets" / "units" / "efficientnet_lite0.parquet"
    table = pq.read_table(path)
    about, rows = json.loads(table.schema.metadata[b"saliscope"]), table.to_pylist()
    assert about["weights_sha256"] == weights_hash(load_model()) and path.stat().st_size <= 3_000_000
    assert "head" in about["layers"] and len(about["layers"]) == 4 and not {"thumbnail", "path"} & set(rows[0])
    assert [row["channel"] for row in rows if row["layer"] == "head"] == list(range(1280))
    assert all(row["image"] and Image.open(io.BytesIO(row["image"])).format == "WEBP" for row in rows)
    named = [row for row in rows if row["name"]]
    assert named and all(row["auc"] >= 0.85 and row["low"] <= row["auc"] <= row["high"] for row in named)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_stopped_index_resumes_to_the_same_tables(store, whole, source, tmp_path):
    out = tmp_path if store == "local" else f"{store}://bucket/{tmp_path.name}/units"

    def stop(done: int, total: int | None) -> None:
        assert total == 3 * COUNT + 1
        if done >= 40:
            raise Stopped

    with pytest.raises(Stopped):
        index(source, out, effects="green", report=stop)
    with pytest.raises(Refused, match="not finished"):
        units.open_index(out)
    seen: list[int] = []
    found = index(source, out, effects="green", report=lambda done, total: seen.append(done))
    assert seen[0] == 48, "finished batches are kept"
    assert found.top.equals(whole.top) and found.manifest["counts"] == whole.manifest["counts"]
    assert found.units["nearest"].equals(whole.units["nearest"]) and len(found.photos) == len(whole.photos)
    for column in set(whole.units.column_names) - {"nearest"}:
        assert found.units[column].to_pylist() == pytest.approx(whole.units[column].to_pylist()), column
    assert not list(tmp_path.rglob("*.pt"))
    index(source, out, effects="green", report=lambda done, total: pytest.fail("indexed again"))


def test_an_index_of_another_network_or_folder_is_refused(whole, source, tmp_path):
    assert units.open_index(whole.folder, color_model()).units.equals(whole.units)
    for other in (color_model(2.0), small_model()):
        with pytest.raises(Refused, match="weights"):
            units.open_index(whole.folder, other)
    with pytest.raises(Refused, match="weights_sha256"):
        index(source, Path(whole.folder), color_model(2.0), effects="green")
    with pytest.raises(Refused, match="saliscope index"):
        units.open_index(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match="other files"):
        index(source, tmp_path)
    (tmp_path / "copy").mkdir()
    for name in ("settings.json", "manifest.json", "units.parquet", "top.parquet"):
        (tmp_path / "copy" / name).write_bytes(Path(whole.folder, name).read_bytes()[:-9])
    with pytest.raises(Refused, match="damaged"):
        units.open_index(tmp_path / "copy")


def test_images_without_labels_have_no_names_and_one_image_is_enough(source, tmp_path):
    one = index(str(Path(source, "red", "00.png")), tmp_path / "one")
    assert one.units["name"].null_count == 5 and len(one.top) == 5
    with pytest.raises(Refused, match="could be read"):
        index(str(Path(source, "blue", "zz.png")), tmp_path / "none")
    with pytest.raises(Refused, match="purple"):
        index(source, tmp_path / "class", effects="purple")


def test_imagenet_labels_bring_their_ancestors():
    from saliscope.runs.units.tables import names_of

    names = names_of(["n02099601", "no class", None], load_model("efficientnet_lite0").labels)
    assert names[0][0] == "golden retriever" and {"dog", "animal"} < set(names[0])
    assert names[1:] == [["no class"], None]


@pytest.mark.parametrize("task", ["segmentation", "detection"])
def test_networks_that_do_not_classify_have_an_index(task, source, tmp_path, monkeypatch):
    """Segmentation networks also have effects; a detector may find nothing in an image."""
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    model = load_model(f"blobs_{task}")
    layer = next(layer.name for layer in list_layers(model.network, model.prepare(dense_nets.scene())) if layer.grid)
    few = str(Path(source, "red"))
    found = index(few, tmp_path / "units", model, layers=(layer,), top=2)
    assert len(found.top) == 2 * len(found.units)
    if task == "detection":
        with pytest.raises(Refused, match="detect nothing"):
            index(few, tmp_path / "effects", model, layers=(layer,), effects="predicted")
    else:
        found = index(few, tmp_path / "effects", model, layers=(layer,), effects="predicted", top=2)
        assert len(found.top) == 4 * len(found.units)


def test_a_layer_without_positions_is_refused_before_any_image_is_read(source, tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)).eval()
    model = Model("flat", network, [*"abcd"], Preparation(32, 32, (0.5,) * 3, (0.5,) * 3))
    with pytest.raises(ValueError, match="'1'"):
        index(source, tmp_path / "units", model)
    assert not (tmp_path / "units").exists() or not list((tmp_path / "units").iterdir())
