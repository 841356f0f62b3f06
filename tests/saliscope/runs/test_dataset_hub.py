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

from saliscope.errors import Refused
from saliscope.runs import sources
from tests.saliscope.runs.test_dataset_ray import explain, model, rows, write_tables

__all__ = ["model"]  # a fixture


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

    def _entry(self, path: Path) -> dict[str, Any]:
        name = str(path.relative_to(self.server.folder))
        kind, size = ("file", path.stat().st_size) if path.is_file() else ("directory", 0)
        return {"type": kind, "oid": hashlib.sha1(name.encode()).hexdigest(), "size": size, "path": name}

    def do_GET(self) -> None:
        """Answer a request."""
        path = urlsplit(self.path).path
        tree = re.fullmatch(r"/api/datasets/me/data/tree/[^/]+/?(.*)", path)
        file = re.fullmatch(r"/datasets/me/data/resolve/[^/]+/(.*)", path)
        status, body, headers = 200, b"", {}
        if tree and (self.server.folder / tree[1]).is_dir():
            body = json.dumps([*map(self._entry, sorted((self.server.folder / tree[1]).iterdir()))]).encode()
        elif file and (self.server.folder / file[1]).is_file():
            self.server.requested.append(file[1])
            content = (self.server.folder / file[1]).read_bytes()
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            status, body = 206, content[first : last + 1]
            headers = {"ETag": '"1"', "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        elif re.fullmatch(r"/api/datasets/me/data(/revision/.*)?", path):
            body = json.dumps({"id": "me/data", "_id": "1", "sha": "a" * 40, "siblings": []}).encode()
        else:
            status, headers = 404, {"X-Error-Code": "EntryNotFound" if "/me/data" in path else "RepoNotFound"}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Start a hub with three tables of 16 images."""
    client = pytest.importorskip("huggingface_hub")
    (tmp_path / "hub").mkdir()
    write_tables(tmp_path / "hub" / "data", 3, 16)
    server = Hub(tmp_path / "hub")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    constants = {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}
    for name, value in constants.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    client.HfFileSystem.clear_instance_cache()
    yield server
    client.HfFileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("source", ["", "/data/{0..2}.parquet"])
def test_tables_of_a_hub_are_partitions(hub, source, model, tmp_path, monkeypatch):
    """A table is requested in its turn. Oracle: the same tables on this machine."""
    explain(str(hub.folder / "data"), tmp_path / "local", model)
    monkeypatch.setattr("saliscope.runs.sources.listing.FILES", 2)
    listing = sources.list_items(f"hf://datasets/me/data{source}")
    hub.requested.clear()
    assert len(listing.partitions) == 3 and sum(map(len, listing.partitions[1]())) == 16
    assert not any(name.endswith("2.parquet") for name in hub.requested)
    explain(f"hf://datasets/me/data{source}", tmp_path / "run", model)
    found, expected = rows(tmp_path / "run"), rows(tmp_path / "local")
    assert len(found) == 48 and not any(row["error"] for row in found)
    paths = [row.pop("path").removeprefix("data/") for row in found]
    assert paths == [row.pop("path") for row in expected] and found == expected
    with pytest.raises(Refused, match="hf://datasets/me/other"):
        sources.list_items("hf://datasets/me/other")
