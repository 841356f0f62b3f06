"""Checks of the built site in build/site, which `make docs` runs after it builds it.

They are not tests of `make test`, which does not build the site.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.project.sources import ROOT
from tests.saliscope.browser.conftest import browser  # noqa: F401 a fixture
from tests.saliscope.browser.test_accessibility import axe_script

SITE = ROOT / "build" / "site"
PAGES = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
LIMIT = 300_000
"""Bytes of a page with its styles and scripts, without images."""
LOADED = re.compile(r'<(?:script|link)\b[^>]*\b(?:src|href)="([^"]+)"[^>]*>')
IMAGES = re.compile(r"data:image/[\w+.-]+;base64,[\w+/=]*")
OTHER_HOST = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*stylesheet[^>]*//')
KINDS = (
    "index", "start", "faq", "your_model", "page", "reference/explain", "reference/commands", "figures", "search",
    "notebooks/1_first_map",
)  # fmt: skip
"""One page of each kind."""
QUESTIONS = {
    "grad-cam vision transformer": {"faq", "coming_from"},
    "which layer resnet": {"faq"},
    "integrated gradients baseline": {"faq", "reference/gradients"},
    "less memory": {"faq"},
    "explain batch": {"faq", "reference/calls"},
    "guided backprop inplace relu": {"faq", "coming_from", "reference/backward"},
    "yolo": {"faq", "your_model", "reference/targets"},
    "segmentation": {"your_model", "faq"},
    "occlusion window size": {"faq"},
    "logits or probabilities": {"faq", "your_model"},
    "clip text": {"faq", "your_model"},
    "blank map": {"faq", "troubleshooting"},
    "own model": {"start", "your_model"},
    "resnet random weights normalization": {"start", "your_model"},
    "batch different targets": {"faq"},
    "lrp resnet batch norm": {"faq", "coming_from"},
    "map all zero": {"faq", "troubleshooting"},
    "save heatmap png": {"faq", "start"},
    "speed up score-cam": {"faq"},
    "is the map faithful": {"faq", "metrics"},
    "own loss target": {"faq", "reference/targets"},
    "multiple gpus": {"faq", "scale"},
    "explain folder ray": {"scale", "data_sets", "faq"},
    "timm model": {"your_model", "faq"},
}
"""What users of other libraries search for, and the pages that answer it."""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the site, as a browser loads search results with requests."""
    assert PAGES, "build the site first: make docs"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def weight(page: Path) -> int:
    """Return the size in bytes of a page with the files that it loads, without images."""
    text = page.read_text(encoding="utf-8")
    loaded = {(page.parent / link.partition("?")[0]).resolve() for link in LOADED.findall(text) if "//" not in link}
    files = [path for path in loaded if path.suffix in (".css", ".js")]
    return len(IMAGES.sub("", text).encode()) + sum(path.stat().st_size for path in files)


def test_every_page_is_light() -> None:
    weights = {page.relative_to(SITE).as_posix(): weight(page) for page in PAGES}
    assert {name: size for name, size in weights.items() if size > LIMIT} == {}


def test_no_page_loads_from_another_host() -> None:
    assert [page.name for page in PAGES if OTHER_HOST.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_answers_questions_of_users_of_other_libraries(browser: Any, address: str, question: str) -> None:  # noqa: F811
    """One of the pages that answer it is among the first five results."""
    page = browser.new_page()
    page.goto(f"{address}/search.html?q={question.replace(' ', '+')}")
    page.wait_for_selector("#search-results .search li")
    page.wait_for_function("document.querySelector('#search-results p.search-summary')?.textContent.includes('found')")
    links = page.eval_on_selector_all("#search-results .search li > a", "links => links.map(each => each.href)")
    page.close()
    names = [re.sub(r"\.html.*", "", link.removeprefix(f"{address}/")) for link in links]
    assert QUESTIONS[question] & {*names[:5]}, names[:10]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(browser: Any, address: str, kind: str, scheme: str) -> None:  # noqa: F811
    page = browser.new_page(color_scheme=scheme, reduced_motion="reduce")
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("request", lambda request: request.url.startswith(address) or failed.append(request.url))
    page.goto(f"{address}/{kind}.html")
    page.evaluate(axe_script())
    found = page.evaluate(
        "async () => (await axe.run()).violations.flatMap(rule => rule.nodes.map(node => [rule.id, node.html]))"
    )
    page.close()
    assert (found, failed) == ([], [])
