"""The page behind nginx with the configuration of `compose.yaml`: TLS, limits, event streams, and closed routes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.saliscope.browser.conftest import ROOT, free_port

NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (NGINX and shutil.which("openssl")), reason="nginx and openssl are not installed"),
]
MAIN = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; {user}
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/a; uwsgi_temp_path {folder}/b; scgi_temp_path {folder}/c;
    include {folder}/default.conf;
}}
"""


@pytest.fixture(scope="module")
def proxy(app: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """nginx with the configuration of the repository, except for its addresses and folders."""
    folder = tmp_path_factory.mktemp("nginx")
    plain, secure = free_port(), free_port()
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{plain}").replace("page:7860", app.removeprefix("http://"))
    text = text.replace("/dev/stdout", str(folder / "access.log")).replace("/dev/stderr", str(folder / "error.log"))
    text = text.replace("listen 8443 ssl", f"listen 127.0.0.1:{secure} ssl").replace("/etc/nginx/tls", str(folder))
    version = subprocess.run([str(NGINX), "-v"], capture_output=True, text=True, check=True).stderr
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (1, 25):  # `http2 on` is newer
        text = text.replace("http2 on;", "").replace(f":{secure} ssl", f":{secure} ssl http2")
    (folder / "default.conf").write_text(text, encoding="utf-8")
    user = "" if os.geteuid() else "user root;"  # otherwise its workers could not read the folders of this test
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user), encoding="utf-8")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout privkey.pem".split()
    subprocess.run([*command, "-out", "fullchain.pem"], cwd=folder, check=True, capture_output=True)
    start = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    subprocess.run([*start, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(start)
    try:
        while process.poll() is None:
            with socket.socket() as door:
                if door.connect_ex(("127.0.0.1", secure)) == 0:
                    break
            time.sleep(0.05)
        assert process.poll() is None, (folder / "error.log").read_text()
        address = f"https://127.0.0.1:{secure}"
        yield SimpleNamespace(plain=f"http://127.0.0.1:{plain}", address=address, port=secure, folder=folder)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def client(proxy: SimpleNamespace) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.address, verify=False, timeout=60) as found:
        yield found


def test_only_tls_serves_the_page_and_its_address_is_the_one_that_was_requested(
    proxy: SimpleNamespace, client: httpx.Client
) -> None:
    moved = httpx.get(f"{proxy.plain}/a?b=c")
    assert (moved.status_code, moved.headers["location"]) == (308, "https://127.0.0.1/a?b=c")
    page = client.get("/", headers={"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "http"})
    assert page.status_code == 200 and "evil.example" not in page.text
    assert client.get("/config").json()["root"] == proxy.address
    assert page.headers["strict-transport-security"] and "server" in page.headers
    assert "nginx/" not in page.headers["server"]
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)), socket.create_connection(("127.0.0.1", proxy.port)) as door:
        old.wrap_socket(door)


def test_large_bodies_and_closed_routes_are_refused_before_the_page(client: httpx.Client) -> None:
    assert client.post("/gradio_api/call/explain", content=b" " * 1_100_000).status_code == 413
    assert client.post("/gradio_api/upload", files={"files": ("a.png", bytes(2_000_000))}).status_code == 200
    assert client.post("/gradio_api/upload", files={"files": ("a.png", bytes(34 * 2**20))}).status_code == 413
    assert [client.get(path).status_code for path in ("/healthz", "/metrics")] == [404, 404]
    assert client.post("/mcp", content=b" " * 2_000_000).status_code == 404, "agents send images; they are off here"


def test_the_log_has_routes_but_no_names(proxy: SimpleNamespace, client: httpx.Client) -> None:
    for path in ("/gradio_api/file=/tmp/x/secret.png", "/gradio_api/call/explain/secret", "/secret", "/?image=secret"):
        client.get(path)
    client.post("/gradio_api/upload", files={"files": ("secret.png", b"x")})
    log = (proxy.folder / "access.log").read_text()
    assert "secret" not in log + (proxy.folder / "error.log").read_text()
    routes = [line.split()[3] for line in log.splitlines()]
    assert {"/gradio_api/file", "/gradio_api/call", "/gradio_api/upload", "/", "other"} <= set(routes)
    assert log.splitlines()[-1].split()[1] == "127.0.0.1"


def test_ipv6_addresses_of_one_network_are_one_visitor() -> None:
    """The patterns of the configuration in its order; those of Python have the same syntax except for the names."""
    text = (ROOT / "deploy" / "nginx.conf").read_text().partition("map $remote_addr $visitor {")[2]
    rules = re.findall(r'"~(\^.+)" "?\$(\w+)([^;"]*)"?;', text.partition("default")[0])
    for address, visitor in {
        "203.0.113.7": None,
        "2001:db8:1:2:3:4:5:6": "2001:db8:1:2",
        "2001:db8:1:2::9": "2001:db8:1:2",
        "2001:db8::9": "2001:db8::",
        "2001:db8::5:6:7:8": "2001:db8::",
        "::1": "::",
    }.items():
        matches = ((re.match(pattern.replace("(?<", "(?P<"), address), name, end) for pattern, name, end in rules)
        assert next((found[name] + end for found, name, end in matches if found), None) == visitor, address


def test_events_arrive_one_by_one(client: httpx.Client) -> None:
    """A heartbeat of Gradio's stream arrives while the stream is open."""
    event = client.post("/gradio_api/call/list_models", json={"data": []}).json()["event_id"]
    assert "event: complete" in client.get(f"/gradio_api/call/list_models/{event}").text
    with client.stream("GET", "/gradio_api/heartbeat/proxy") as stream:
        assert next(stream.iter_text()).startswith("data: ALIVE")


def test_one_visitor_cannot_send_many_requests(client: httpx.Client) -> None:
    """The last test: the limit of this address is used up for a while."""

    def call(_: int) -> int:
        return client.post("/gradio_api/call/list_layers", json={"data": [""]}).status_code

    with ThreadPoolExecutor(8) as threads:
        calls = list(threads.map(call, range(90)))
    assert set(calls) == {200, 429} and 40 <= calls.count(200) <= 70
