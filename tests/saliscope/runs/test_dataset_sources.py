"""Sources: every kind lists the same images with the same bytes, and unsupported sources are reported."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from saliscope.errors import Refused
from saliscope.runs.items import Item, read
from saliscope.runs.sources import Listing, list_items

IMAGES = {"cat/1.png": "cat", "cat/2.JPG": "cat", "dog/10.png": "dog", "dog/9.webp": "dog"}


def image(name: str) -> bytes:
    """Return an image whose color depends on its name."""
    file = io.BytesIO()
    color = sum(name.encode()) % 256
    Image.new("RGB", (8, 8), (color, 0, 255 - color)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write folder/class/image, and a file that is not an image."""
    return fill(tmp_path / "photos", {name: image(name) for name in IMAGES} | {"readme.txt": b"hello"})


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def labels(listing: Listing) -> dict[str, str | None]:
    return {item.path: item.label for item in listing.items}


def check(listing: Listing, names: dict[str, str] = IMAGES) -> None:
    """Oracle: the dictionary that the source was written from, and the bytes of each image."""
    assert labels(listing) == names
    assert [item.path for item in listing.items] == sorted(names)
    for item in pickle.loads(pickle.dumps(listing.items)):
        assert read(item) == image(item.path)


def refusal(source: object, *parts: str) -> str:
    with pytest.raises(Refused) as refused:
        list_items(str(source))
    message = str(refused.value)
    assert all(part in message for part in parts), message
    assert message.endswith(".") and "\n" not in message
    return message


def test_labels_of_folders(tmp_path: Path) -> None:
    for number, (names, expected) in enumerate((
        ("a.png b.png", ""),  # no folders
        ("x/a.png x/b.png", ""),  # a single folder is not a class
        ("x/a.png y/b.png c.png", ""),  # one image is not in a folder
        ("x/images/a.png y/images/b.png", "x y"),
        ("train/x/a.png val/y/b.png", "x y"),
        ("all/train/x/a.png all/val/y/b.png", "x y"),
        ("x/.cache/a.png y/b.png x/._c.png __MACOSX/y/b.png x/d.png", "x y"),
    )):  # fmt: skip
        folder = fill(tmp_path / str(number), dict.fromkeys(names.split(), b""))
        assert {item.label for item in list_items(str(folder)).items} - {None} == {*expected.split()}, names


def test_links_names_and_loops(folder: Path, tmp_path: Path) -> None:
    """Folders behind links are listed, except a parent folder; so are names that are not UTF-8 and links to no file."""
    (folder / "dog" / "up").symlink_to(folder)
    (folder / "bird").symlink_to(fill(tmp_path / "else", {"3.png": image("bird/3.png")}))
    check(list_items(str(folder)), {**IMAGES, "bird/3.png": "bird"})
    (folder / "gone.png").symlink_to(tmp_path / "nowhere")
    (folder / "endless.png").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.png")
    (folder / os.fsdecode(b"bird/\xff.png")).write_bytes(b"x")
    (odd, gone) = (item for item in list_items(str(folder)).items if item.path not in IMAGES and "3" not in item.path)
    assert odd.path.encode() and read(odd) == b"x" and gone.path == "gone.png"
    for name, reason in (("gone.png", r"File not found: .*gone\.png"), ("pipe.png", "pipe"), ("cat", "a folder")):
        with pytest.raises(Refused, match=reason):
            read(Item(name, None, str(folder / name)))
    inner = fill(tmp_path / "outer" / "inner", dict.fromkeys(("a/1.png", "b/2.png"), b""))
    (inner / "a" / "above").symlink_to(tmp_path / "outer")
    assert [item.path for item in list_items(str(inner)).items] == ["a/1.png", "b/2.png"], "nothing twice"


def test_kinds_of_sources(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind has the same images and labels, and is read from another folder than it was listed from."""
    files, rows = {f"./{name}": image(name) for name in IMAGES}, IMAGES.items()
    for path in (tmp_path / "one.tar", tmp_path / "tars" / "1.tar"):
        path.parent.mkdir(exist_ok=True)
        tar(path, files)
    note = {"note": "one\u2028line"}  # a line's end to Python, not to JSON
    lines = [json.dumps({"path": name, "label": label} | note, ensure_ascii=False) for name, label in rows]
    plain, others = ("\n".join(f"{name}{mark}{label}" for name, label in rows) for mark in ",;")
    backwards = "\r\n".join(f'"{label}",1,{name}' for name, label in rows)
    lists = {
        "plain.csv": plain,
        "list.csv": f"path,label\n{plain}",
        "columns.csv": f"\ufefflabel,extra,Path\n{backwards}",
        "semicolons.csv": f"path;label\n{others}",
        "list.jsonl": "\n".join([*lines, ""]),
    }
    fill(folder, {name: text.encode() for name, text in lists.items()})
    table = pa.table({"label": pa.array(list(IMAGES.values())).dictionary_encode(), "path": list(IMAGES)})
    pq.write_table(table, folder / "list.parquet")
    kinds = {"": "folder", "../one.tar": "tar", "../tars": "tar", **dict.fromkeys([*lists, "list.parquet"], "list")}
    for name, kind in kinds.items():
        monkeypatch.chdir(folder)
        listing = list_items(name or "../photos/")
        monkeypatch.chdir("/")
        assert listing.kind == kind, name
        if name == "../tars":
            assert labels(listing) == {f"1.tar/{name}": label for name, label in rows}
            assert read(listing.items[0]) == image(min(IMAGES))
        else:
            check(listing)
    assert [item.path for item in list_items(str(folder), limit=2).items] == sorted(IMAGES)[:2]
    first = folder / "cat" / "1.png"
    assert list_items(str(first)).items == [Item("1.png", None, str(first))]
    (folder / "list.txt").write_text(f"./cat/1.png\n{folder}/dog/10.png\n\nwith, comma.png\ncat/1.png\n")
    listing = list_items(str(folder / "list.txt"))
    assert labels(listing) == dict.fromkeys(("cat/1.png", "with, comma.png", f"{folder}/dog/10.png"))
    some = pa.table({"path": ["cat/1.png", "dog/10.png", "cat/2.png"], "label": [1.0, float("nan"), None]})
    pq.write_table(some, folder / "numbers.parquet")
    found = [item.label for item in list_items(str(folder / "numbers.parquet")).items]
    assert found.count(None) == 2 and len(found) == 3, "NaN is no label"


def test_metadata_without_labels_leaves_the_labels_of_folders(folder: Path) -> None:
    (folder / "features.parquet").write_bytes(b"PAR1 no table")
    for text in ("id,title\n1,holiday\n", "file_name,title\ncat/1.png,holiday\n"):
        (folder / "metadata.csv").write_text(text)
        check(list_items(str(folder)))
    (folder / "metadata.jsonl").write_text('{"file_name": "cat/1.png", "label": "cat"}\n{broken\n')
    refusal(folder, "metadata.jsonl", "Line 2 of", "is not a JSON object")


def test_a_tar_with_label_files(tmp_path: Path) -> None:
    """WebDataset: a key is everything before the first dot, and its label has the key's name."""
    files = {"a/1.png": b"", "a/1.cls": b"7\n", "a/2.jpg": b"", "a/2.json": b'{"label": "cat"}', "3.png": b""}
    files |= {"3.txt": "café".encode(), "4.png": b"", "4.json": b"{", "__MACOSX/5.png": b"", "._6.png": b""}
    path = tar(tmp_path / "set.tar", {name: data or image(name) for name, data in files.items()})
    listing = list_items(str(path))
    check(listing, {"a/1.png": "7", "a/2.jpg": "cat", "3.png": "café", "4.png": None})
    assert listing.kind == "tar"


def test_a_damaged_tar_is_reported(tmp_path: Path) -> None:
    """Four members of two blocks each; a tar that ends between two members has no end mark."""
    path = tar(tmp_path / "set.tar", {name: image(name) for name in IMAGES})
    data = path.read_bytes()
    assert len(list_items(str(path)).items) == 4 and len(data) == 10240
    changed = data[:2198] + bytes([data[2198] ^ 1]) + data[2199:]
    for content, *parts in (
        (data[:1100], "1 members before", "truncated"),
        (data[:2148], "2 members before", "truncated", "without its last block"),
        (data[:4096], "4 members before", "truncated", "without its last block"),
        (changed, "The 2 members before", "Copy it again"),
    ):
        path.write_bytes(content)
        refusal(path, *parts)


NAMES = ["dog", "cat"]


def hugging_face_table(names: dict[str, str]) -> pa.Table:
    images = [{"bytes": image(name), "path": None} for name in names]
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    table = pa.table({"image": images, "label": [NAMES.index(label) for label in names.values()]})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def test_hugging_face_parquet(tmp_path: Path) -> None:
    """Every row of several row groups and files is found."""
    (tmp_path / "data").mkdir()
    names = dict(sorted(IMAGES.items()) * 3)
    pq.write_table(hugging_face_table(names), tmp_path / "data" / "test-0.parquet", row_group_size=3)
    pq.write_table(hugging_face_table(names), tmp_path / "data" / "test-1.parquet", row_group_size=1)
    (tmp_path / "logo.png").write_bytes(b"other file")
    listing = list_items(str(tmp_path))
    assert (listing.kind, len(listing.items)) == ("huggingface", 8)
    assert [item.path for item in listing.items] == [f"data/test-{i}.parquet#{j:08d}" for i in (0, 1) for j in range(4)]
    for item, name in zip(listing.items, [*names, *names], strict=True):
        assert (item.label, read(item)) == (IMAGES[name], image(name))
    assert len(list_items(str(tmp_path / "data" / "test-0.parquet")).items) == 4
    rows = [{"bytes": None, "path": "1.png"}, {"bytes": None, "path": None}, {"bytes": None, "path": "gone.png"}]
    pq.write_table(pa.table({"mask": rows[::-1], "Image": rows}), tmp_path / "x.parquet")
    (tmp_path / "1.png").write_bytes(b"one")
    first, *others = list_items(str(tmp_path / "x.parquet")).items
    assert read(first) == b"one"
    for item, message in zip(others, ("Row 1 .* has no image", "File not found: .*gone.png"), strict=True):
        with pytest.raises(Refused, match=message):
            read(item)


def test_hugging_face_save_to_disk(tmp_path: Path) -> None:
    """Oracle: the datasets package itself."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=NAMES))
    data = {"image": [{"bytes": image(n)} for n in IMAGES], "label": [NAMES.index(IMAGES[n]) for n in IMAGES]}
    saved = datasets.Dataset.from_dict(data, features=features)
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path / "set", num_shards={"train": 2, "test": 1})
    listing = list_items(str(tmp_path / "set"))
    assert (listing.kind, len(listing.items)) == ("huggingface", 8)
    assert [(item.label, read(item)) for item in listing.items] == [(IMAGES[n], image(n)) for n in IMAGES] * 2


def test_hugging_face_image_folders_have_the_labels_of_their_metadata(tmp_path: Path) -> None:
    """Oracle: the dictionary that the files were written from. The name of the folder would be another label."""
    names = {"a/1.png": "fox", "a/2.png": "owl", "b/3.png": "fox"}
    fill(tmp_path / "set", {f"train/{name}": image(f"train/{name}") for name in names})
    table = pa.table({"file_name": list(names), "label": list(names.values())})
    pq.write_table(table, tmp_path / "set" / "train" / "metadata.parquet")
    listing = list_items(str(tmp_path / "set"))
    check(listing, {f"train/{name}": label for name, label in names.items()})
    assert listing.kind == "huggingface"

    fill(tmp_path / "set", {"train/c/4.png": image("train/c/4.png"), "test/5.png": image("test/5.png")})
    assert labels(list_items(str(tmp_path / "set")))["train/c/4.png"] is None, "not listed in the metadata"


def test_remote_sources(tmp_path: Path) -> None:
    """A folder, a tar and a list in fsspec's memory file system equal those on the disk."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name in IMAGES:
        memory.pipe(f"/set/{name}", image(name))
    memory.pipe("/set/list.csv", b"path\n" + "\n".join(IMAGES).encode())
    memory.pipe("/set.tar", tar(tmp_path / "s.tar", {name: image(name) for name in IMAGES}).read_bytes())
    check(list_items("memory://set"))
    check(list_items("memory://set.tar"))
    check(list_items("memory://set/list.csv"), dict.fromkeys(IMAGES))
    refusal("memory://nowhere", "not found: memory://nowhere")
    memory.store.clear()


def test_sources_in_archives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive with a relative path is opened by fsspec and read from another folder."""
    archive = Path(shutil.make_archive(str(folder.parent / "all"), "zip", folder.parent, "photos")).name
    for address in ("zip://::{}", "zip://photos::{}", "zip::{}", "simplecache::zip://photos::{}"):
        monkeypatch.chdir(folder.parent)
        listing = list_items(address.format(archive))
        monkeypatch.chdir("/")
        whole = "photos" not in address
        assert labels(listing) == {f"photos/{name}" if whole else name: label for name, label in IMAGES.items()}
        assert [read(item) for item in listing.items] == [image(name) for name in sorted(IMAGES)]
        refusal(address.format("nowhere.zip"), "nowhere.zip")


UNSUPPORTED = (
    ("no_path.csv", b"name,label\nx,y\n", "no column path", "name, label"),
    ("no_path.tsv", b"label\tname\ndog\tx.jpg\n", "no column path", "label, name"),
    ("no_path.jsonl", b'{"width": 3}', "Line 1 of", "has no path. Its keys are width"),
    ("empty.csv", b"", "empty"),
    ("header.csv", b"path,label\n", "only a header"),
    ("gone.csv", b"path,label\na.png,x\nb.png,y\n", "None of the 2 files", "files/a.png"),
    ("two.csv", b"path,label\n../photos/cat/1.png,x\n../photos/cat/1.png,y\n", "two labels, x and y"),
    ("hole.csv", b"path,label\n,y\n", "Entry 1"),
    ("latin.csv", "path,label\nä.png,x\n".encode("latin-1"), "UTF-8"),
    ("x.bin", bytes(range(256)), "not a supported file"),
    ("x.tar.gz", b"\x1f\x8b\x08\x00", "compressed (gzip)", "gzip -d x.tar.gz"),
    ("x.zip", b"PK\x03\x04", "compressed (zip)"),
    ("x.parquet", b"PAR1 and no more", "damaged"),
)
"""Files, and parts of their messages."""


def test_unsupported_sources(tmp_path: Path, folder: Path) -> None:
    """Each message names the source and what was found."""
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "other.parquet")
    for source, *parts in (
        *((fill(tmp_path / "files", {name: content}) / name, *parts) for name, content, *parts in UNSUPPORTED),
        (tmp_path / "nowhere", "not found", "nowhere"),
        ("", "source is empty"),
        ("nosuch://x/y", "nosuch"),
        (tmp_path / "empty", "empty folder"),
        (fill(tmp_path / "text", {"a.txt": b"", "b.txt": b"", "c.md": b""}), "3 files", "2 .txt", "1 .md"),
        (tmp_path / "other.parquet", "no column path", "name"),
        (tar(tmp_path / "none.tar", {"a.txt": b"hello"}), "without images"),
    ):
        refusal(source, *parts)
    with pytest.raises(Refused, match="Invalid limit 0"):
        list_items(str(folder), limit=0)


def test_sets_of_shards_in_braces(tmp_path):
    """Oracle: the members of the tars. A file with braces in its name is a file."""
    pytest.importorskip("braceexpand")
    for number in range(1, 12):
        tar(tmp_path / f"train-{number:04d}.tar", dict.fromkeys(("b.jpg", "a.jpg"), b"abc"))
    (tmp_path / "{0..1}.jpg").write_bytes(b"abc")
    nine = [f"train-{k:04d}.tar/{name}" for k in range(2, 11) for name in ("a.jpg", "b.jpg")]
    for pattern, limit, expected in (
        ("train-{0002..0010}.tar", None, nine), ("train-000{3,1}.tar", 1, ["train-0001.tar/a.jpg"]),
        ("{0..1}.jpg", None, ["{0..1}.jpg"]),
    ):  # fmt: skip
        assert [item.path for item in list_items(f"{tmp_path}/{pattern}", limit).items] == expected
    refusal(f"{tmp_path}/train-{{0010..0013}}.tar", "2 of the 4 files in", "do not exist: ", "12.tar, ", "13.tar")
    refusal(f"{tmp_path}/train-{{0001.tar", "not balanced")
