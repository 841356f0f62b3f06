"""Large sources are listed lazily: the same images and labels as at once, and runs that resume and notice changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import items as partitions
from saliscope.runs import ray_engine, run, sources
from saliscope.runs.finished_run import Finder
from saliscope.runs.items import Item, read
from saliscope.runs.shards import read_manifest
from saliscope.runs.sources import list_items, listing, lists
from saliscope.runs.sources.lists import Repetitions
from tests.saliscope.runs.test_dataset_ray import pretended, sender
from tests.saliscope.runs.test_dataset_sources import fill as write
from tests.saliscope.runs.test_dataset_sources import image, tar
from tests.saliscope.runs.test_dataset_stores import Killed, model, rows
from tests.saliscope.runs.test_dataset_stores import prepare as start

__all__ = ["model", "pretended"]  # fixtures


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets how many images are listed at once."""

    def set_whole(count: int) -> None:
        for module in (partitions, listing, run):
            monkeypatch.setattr(module, "WHOLE", count)
        monkeypatch.setattr(lists, "BLOCK", count)

    return set_whole


def fill(folder: Path, names: str) -> Path:
    return write(folder, {name: image(name) for name in names.split()})


def tars(folder: Path, *members: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number, names in enumerate(members):
        tar(folder / f"s-{number:03d}.tar", {name: image(f"{number}{name}") for name in names.split()})
    return folder


def prepare(source: object, out: Path, model: Any, **settings: Any) -> run.Job:
    return start(str(source), out, model, **{"batch_size": 2, "shard": 4, **settings})


@pytest.mark.parametrize("place", ["local", "memory"])
def test_large_folder_has_the_images_and_labels_of_a_small_one(place, lazy, tmp_path):
    """Oracle: the same folder listed at once, which sees all paths."""
    store = fsspec.filesystem("memory")
    for number, names in enumerate((
        "a/1.png a/2.png b/1.png b/x/0.png b-c/1.png b.d/1.png",
        "train/a/1.png train/b/1.png val/a/2.png val/b/3.png",
        "root/train/a/1.png root/train/b/1.png root/val/b/1.png notes/text.md",
        "a/1.png b/1.png 0.png",
        "a/1.png b/1.png empty/text.md a/.hidden/9.png",
        "train/1.png train/b/1.png val/a/2.png",
        "y/a/1.png y/a.png/2.png y/a-b/3.png",
        "train/a/1.png train/a/2.png train/b/3.png train/metadata.csv",
    )):  # fmt: skip
        source = str(fill(tmp_path / str(number), names))
        if "metadata" in names:  # a file of labels
            (Path(source) / "train" / "metadata.csv").write_text("file_name,label\na/1.png,fox\na/2.png,owl\n")
        if place == "memory":
            for name in names.split():
                store.pipe(f"/lazy{number}/{name}", (tmp_path / str(number) / name).read_bytes())
            source = f"memory://lazy{number}"
        lazy(65_536)
        expected = list_items(source)
        lazy(1)
        found = list_items(source)
        assert (found.known is None) == (found.kind == "folder") == ("metadata" not in names)
        assert list(found) == expected.known == found.items, names
        assert list_items(source, 3).items == expected.items[:3]


def test_long_list_is_sorted_in_blocks(lazy, tmp_path):
    """Oracle: blocks of four entries, each sorted."""
    names = [f"{k * 7 % 11:02d}.png" for k in range(11)]
    fill(tmp_path, " ".join(names))
    pq.write_table(pa.table({"path": names}), tmp_path / "list.parquet")
    (tmp_path / "list.jsonl").write_text("".join(f'{{"path": "{name}"}}\n' for name in names))
    (tmp_path / "list.csv").write_text("\n".join(["path", *names]))
    blocks = [names[start : start + 4] for start in range(0, 11, 4)]
    for kind in ("csv", "jsonl", "parquet"):
        lazy(4)
        found = list_items(tmp_path / f"list.{kind}")
        assert found.known is None and [item.path for item in found] == [name for own in blocks for name in sorted(own)]
        lazy(11)
        assert [item.path for item in list_items(tmp_path / f"list.{kind}").items] == sorted(names)


def test_repeated_entries_of_a_long_list(lazy, tmp_path):
    source = fill(tmp_path, "1.png 2.png 3.png") / "list.csv"
    source.write_text("path,label\n1.png,a\n1.png,a\n2.png,a\n3.png,a\n")
    lazy(2)
    assert [item.path for item in list_items(source)] == ["1.png", "2.png", "3.png"], "within a block"
    for last, message in (
        (b"./1.png,b", r"lists 1\.png more than once"),
        (b",b", r"Entry 4 of .* has no path"),
        (b"\xff,b", r"not UTF-8 text \(byte 35\)"),
    ):
        source.write_bytes(b"path,label\n1.png,a\n2.png,a\n3.png,a\n" + last + b"\n")
        with pytest.raises(Refused, match=message):
            list(list_items(source))


def test_repetitions_are_found_in_every_block():
    known, blocks = Repetitions(), [[f"{k}-{i}" for i in range(50)] for k in range(40)]
    assert all(known.add(block) is None for block in blocks)
    assert [known.add(["new", block[k]]) for k, block in enumerate(blocks)] == [1] * 40


def test_set_of_tars_is_listed_file_by_file(lazy, tmp_path):
    """Labels are the folders in the tars, which the first tars show; the second one has only one of them."""
    source = tars(tmp_path / "tars", "a/2.png b/1.png a/1.png", "b/3.png", "a/4.png b/5.png")
    expected = list_items(source)
    lazy(3)
    found = list_items(source)
    assert found.known is None and len(found.partitions) == 3 and list(found) == expected.items
    assert [item.label for item in found] == [*"aabbab"]
    assert list_items(source, 4).items == expected.items[:4] and len(list_items(source, 4).partitions) == 2


def test_set_of_tables_and_of_lists(lazy, tmp_path):
    for number in range(3):
        rows = [{"image": {"bytes": image(str(k)), "path": None}, "label": "ab"[k % 2]} for k in range(2 + number)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet")
        pq.write_table(pa.table({"path": [f"{number}-{k}.png" for k in (1, 0)]}), tmp_path / f"{number}.list.parquet")
        fill(tmp_path, f"{number}-0.png {number}-1.png")
    for pattern, kind, count in (("?.parquet", "huggingface", 9), ("*.list.parquet", "list", 6)):
        lazy(65_536)
        expected = list_items(f"{tmp_path}/{pattern}")
        lazy(3)
        found = list_items(f"{tmp_path}/{pattern}")
        assert (found.kind, len(found.partitions), len(found.items)) == (kind, 3, count)
        assert found.items == expected.items and expected.known is not None
    store = fsspec.filesystem("memory")
    store.put(f"{tmp_path}/?.parquet", "/tables/")
    remote = list_items("memory://tables/?.parquet")
    assert len(remote.partitions) == 3 and [read(item) for item in remote] == [image(k) for k in "010120123"]
    pq.write_table(pa.table({"image": [{"bytes": b""}]}), tmp_path / "2.parquet")
    with pytest.raises(Refused, match="different columns: 2.parquet has .* labels in no column; 0.parquet has"):
        list(list_items(f"{tmp_path}/?.parquet"))


# Runs


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder of eleven images, or a set of three tars."""
    if request.param == "folder":
        return fill(tmp_path / "images", " ".join(f"{'ab'[k % 2]}/{k:02d}.png" for k in range(11)))
    names = ["a/1.png b/1.png a/2.png b/2.png a/3.png", "b/4.png", " ".join(f"a/{k}.png" for k in range(5))]
    return tars(tmp_path / "images", *names)


def explain(source: object, out: Path, model: Any, stop: int = 99) -> run.Summary:
    """Explain the images; stop after a number of batches."""
    batches = itertools.count(1)

    def report(done: int, total: int | None) -> None:
        assert total is None
        if next(batches) == stop:
            raise Killed

    return run.run(prepare(source, out, model), decode=open_image, workers=0, report=report)


@pytest.mark.parametrize("source", ["folder", "tars"], indirect=True)
def test_killed_lazy_run_ends_with_the_same_rows(source, model, lazy, tmp_path):
    """The process is stopped after each of its batches in turn. The shards of a tar do not contain other tars."""
    lazy(3)
    explain(source, tmp_path / "whole", model)
    expected, manifest = rows(tmp_path / "whole"), read_manifest(tmp_path / "whole")
    counts = {name: manifest["counts"][name] for name in ("looked_at", "images", "unreadable", "labeled")}
    assert counts == {"looked_at": 11, "images": 11, "unreadable": 0, "labeled": 11}
    parts = [f"part-{k:05d}.parquet" for k in range(3)]
    if list_items(source).kind == "tar":
        parts = [f"part-00000{p}-{k:05d}.parquet" for p, k in ((1, 0), (1, 1), (2, 0), (3, 0), (3, 1))]
    assert manifest["parts"] == parts
    assert [row["path"] for row in expected] == [item.path for item in list_items(source)]
    for _ in range(6):
        with pytest.raises(Killed):
            explain(source, tmp_path / "cut", model, 1)
    explain(source, tmp_path / "cut", model)
    assert rows(tmp_path / "cut") == expected and explain(source, tmp_path / "cut", model).new == 0
    same = {"finished": 0, "seconds": 0}
    assert read_manifest(tmp_path / "cut") | same == manifest | same


@pytest.mark.parametrize("source", ["folder", "tars"], indirect=True)
def test_changed_source_is_noticed(source, model, lazy, tmp_path):
    """A new image changes the shard that it belongs to, in a finished run or another. Finished rows are kept."""
    lazy(3)
    explain(source, tmp_path / "finished", model)
    with pytest.raises(Killed):
        explain(source, tmp_path / "unfinished", model, 3)
    before = {path: path.read_bytes() for path in tmp_path.glob("*finished/part*")}
    if list_items(source).kind == "tar":
        tars(source, "a/1.png b/1.png a/2.png b/2.png a/25.png a/3.png")
    else:
        (source / "a" / "000.png").write_bytes(image("0"))
    for out in ("finished", "unfinished"):
        with pytest.raises(Refused, match="The source has changed since the run in .* was"):
            explain(source, tmp_path / out, model)
    assert {path: path.read_bytes() for path in tmp_path.glob("*finished/part*")} == before


def test_source_with_fewer_images_is_noticed(model, lazy, tmp_path):
    source = fill(tmp_path / "images", " ".join(f"{k:02d}.png" for k in range(11)))
    lazy(3)
    with pytest.raises(Killed):
        explain(source, tmp_path / "run", model, 5)
    for k in range(4, 11):
        (source / f"{k:02d}.png").unlink()
    with pytest.raises(Refused, match="fewer images now"):
        explain(source, tmp_path / "run", model)


@pytest.mark.parametrize("source", ["folder", "tars"], indirect=True)
@pytest.mark.parametrize("where", ["", "label=b"])
def test_cluster_lists_the_source_and_has_the_same_rows(source, model, lazy, tmp_path, pretended, monkeypatch, where):
    """The process that starts the run never lists a whole source; half of the batches arrive late, some twice."""
    lazy(3)
    own = {"where": where}
    local = run.run(prepare(source, tmp_path / "local", model, **own), decode=open_image, workers=0)
    job, attempts = prepare(source, tmp_path / "cluster", model, **own), itertools.count()

    def half(batches: list[Any]) -> list[Any]:
        return [*batches[::-2], *batches[::-4]] if next(attempts) == 0 else batches[::-1]

    pretended(sender(model, job.settings, half))
    monkeypatch.setattr(run.Job, "planned", None)
    seen: list[int] = []
    summary = ray_engine.run(job, decode=open_image, report=lambda done, total: seen.append(done))
    assert summary.new == local.new and seen == sorted(set(seen))
    assert rows(tmp_path / "cluster") == rows(tmp_path / "local")
    for name in ("counts", "parts", "listing", "labeled"):
        assert read_manifest(tmp_path / "cluster")[name] == read_manifest(tmp_path / "local")[name]


def test_images_of_a_run_are_found_without_listing(tmp_path, monkeypatch):
    """Oracle: the listing itself, for every kind of source."""
    folder = fill(tmp_path / "images", "a/1.png b/2.png b/x.tar/3.png")
    (folder / "list.csv").write_text(f"path\na/1.png\n{folder}/b/2.png\n")
    tars(tmp_path / "tars", "a/1.png b/1.png", "a/1.png")
    write(tmp_path, {"odd/\udcff.png": b"x", "tables/x.parquet": b""})
    images = [{"image": {"bytes": image(str(k)), "path": None}} for k in range(3)]
    pq.write_table(pa.Table.from_pylist(images), tmp_path / "tables" / "x.parquet")
    names = "images images/a/1.png images/list.csv tars tars/s-000.tar tars/s-*.tar tables tables/x.parquet odd"
    found = {name: list_items(tmp_path / name).items for name in names.split()}
    for module in (sources, listing):
        monkeypatch.setattr(module, "list_items", None)
    for name, expected in found.items():
        finder = Finder(str(tmp_path / name))
        assert expected and [finder.find(item.path) for item in expected] == [
            Item(item.path, None, item.url, item.offset, item.size, item.row) for item in expected
        ]
    assert Finder(str(tmp_path / "tars")).find("s-000.tar/nothing.png") is None
