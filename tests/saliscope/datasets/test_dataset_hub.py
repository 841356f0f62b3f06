"""Datasets of the Hugging Face Hub (`hf://`) are read table by table; the client is theirs, the server is here."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from saliscope.datasets import run, sources
from saliscope.datasets.settings import Settings
from saliscope.datasets.sources import sets
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from tests.saliscope.datasets.test_dataset_ray import model, rows, write_tables

__all__ = ["model"]  # a fixture
REVISION = "a" * 40


class Hub(ThreadingHTTPServer):
    """Serves a folder as the dataset me/data, and keeps the names of the tables that were requested."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder, self.requested = folder, list[str]()


class Answer(BaseHTTPRequestHandler):
    """The requests that a file system of huggingface_hub makes: information, a folder, a part of a file."""

    server: Hub

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _entry(self, path: Path) -> dict[str, Any]:
        name, is_file = str(path.relative_to(self.server.folder)), path.is_file()
        oid = hashlib.sha1(name.encode()).hexdigest()
        kind = "file" if is_file else "directory"
        return {"type": kind, "oid": oid, "size": path.stat().st_size if is_file else 0, "path": name}

    def do_GET(self) -> None:
        """Answer a request."""
        path = urlsplit(self.path).path
        tree = re.fullmatch(r"/api/datasets/me/data/tree/[^/]+/?(.*)", path)
        file = re.fullmatch(r"/datasets/me/data/resolve/[^/]+/(.*)", path)
        if tree and (self.server.folder / tree[1]).is_dir():
            found = sorted((self.server.folder / tree[1]).iterdir())
            self._send(200, json.dumps([self._entry(each) for each in found]).encode())
        elif file and (self.server.folder / file[1]).is_file():
            self.server.requested.append(file[1])
            content = (self.server.folder / file[1]).read_bytes()
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = content[first : last + 1]
            self._send(206, part, ETag='"1"', Content_Range=f"bytes {first}-{last}/{len(content)}")
        elif re.fullmatch(r"/api/datasets/me/data(/revision/.*)?", path):
            self._send(200, json.dumps({"id": "me/data", "_id": "1", "sha": REVISION, "siblings": []}).encode())
        else:
            self._send(404, b"{}", X_Error_Code="RepoNotFound" if "/me/data" not in path else "EntryNotFound")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Start a hub with three tables of 16 images."""
    client = pytest.importorskip("huggingface_hub")
    (tmp_path / "hub").mkdir()
    write_tables(tmp_path / "hub" / "data", 3, 16)
    server = Hub(tmp_path / "hub")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    files = "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": address + files}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    client.HfFileSystem.clear_instance_cache()
    yield server
    client.HfFileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("source", ["", "/data/{0..2}.parquet"])
def test_tables_of_a_hub_are_partitions(hub, source, model, tmp_path, monkeypatch):
    """A table is requested in its turn. Oracle: the same tables on this machine."""
    settings = Settings(batch_size=4, shard=16)
    local = run.prepare(settings, str(hub.folder / "data"), tmp_path / "local", model=model)
    run.run(local, decode=open_image, workers=0)
    monkeypatch.setattr(sets, "FILES", 2)
    listing = sources.list_items(f"hf://datasets/me/data{source}")
    hub.requested.clear()
    assert len(listing.partitions) == 3 and len(list(listing.partitions[1].items())) == 16
    assert not any(name.endswith("2.parquet") for name in hub.requested)
    job = run.prepare(settings, f"hf://datasets/me/data{source}", tmp_path / "run", model=model)
    run.run(job, decode=open_image, workers=0)
    found, expected = rows(tmp_path / "run"), rows(tmp_path / "local")
    assert len(found) == 48 and not any(row["error"] for row in found)
    paths = [row.pop("path").removeprefix("data/") for row in found]
    assert paths == [row.pop("path") for row in expected] and found == expected
    with pytest.raises(Refused, match="hf://datasets/me/other"):
        sources.list_items("hf://datasets/me/other")
