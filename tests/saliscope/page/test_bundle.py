"""The script with the modules of the first view, and what browsers keep."""

from __future__ import annotations

import json
import re
from typing import Any

import brotli
import pytest
from starlette.requests import Request

from saliscope.page.first_paint import bundle, repeated_work
from saliscope.page.serving.caching import CHECKED, IMMUTABLE, Caching
from tests.support.coroutines import finished

IMPORT = re.compile(r"""\b(?:from|import)\s*\(?\s*["'`]([^"'`\s$]+\.js)["'`]""")


@pytest.fixture(scope="module")
def built() -> bundle.Bundle:
    found = bundle.build(["html", "image", "tabs", "no_such_component"], ["overlay/overlay.js"])
    assert found is not None
    return found


@pytest.fixture(scope="module")
def content(built: bundle.Bundle) -> dict[str, Any]:
    text = built.script.decode()
    found: dict[str, Any] = json.loads(text[text.index('({"modules"') + 1 : text.rindex(")")])
    return found


def test_every_module_imports_by_names_that_are_in_the_script(content: dict[str, Any]) -> None:
    """A module in memory has no address, so neither a relative import nor its own address can be left."""
    modules = content["modules"]
    assert {"hl/overlay/overlay.js", "hl/wire.js", "hl/drawing/surface.js", content["entry"]} <= set(modules)
    for name, text in modules.items():
        assert "import.meta.url" not in text and f"sourceURL={name}" in text
        for imported in IMPORT.findall(text):
            assert not imported.startswith("."), f"{name}: {imported}"
            folder, _, rest = imported.partition("/")
            root = bundle.STATIC if folder == "hl" else bundle.FRONTEND / "assets"
            assert imported in modules or (root / rest).is_file(), f"{name}: {imported}"


def test_the_components_of_gradio_are_found(content: dict[str, Any]) -> None:
    """The modules of the page's components are in the script, with their style sheets; the others are not."""
    gradio_modules = [name for name in content["modules"] if name.startswith("assets/")]
    assert any("Blocks-" in name for name in gradio_modules) and any("HTML-" in name for name in gradio_modules)
    assert not any("Login-" in name or "markdown" in name for name in gradio_modules)
    assert len(content["styles"]) > 10 and next(iter(content["styles"])).startswith("assets/index-")
    assert bundle.PICK not in "".join(content["modules"].values()).replace(f"{bundle.PICK}.filter(", "")


def test_repeated_work_of_gradio_is_left_out_where_its_result_is_the_same(content: dict[str, Any]) -> None:
    """A version of Gradio with another text has no change, which this test reports."""
    modules = {name.rpartition("-")[0]: text for name, text in content["modules"].items()}
    page, html, svelte = (modules[f"assets/{name}"] for name in ("Blocks", "HTML", "index"))
    assert "async update_loading_stati_state(){return;await" in page
    assert re.search(r"===0&&!1&&\w+\.inputs\.forEach\(", page)
    assert "if(typeof e!=='object')return e;try{return structuredClone(e)}" in svelte
    found = re.search(r"!1\),/\[\$@\{\]/\.test\(\((\w+)\(\)\|\|''\)\+\((\w+)\(\)\|\|''\)\)&&\(", html)
    assert found, "templates with a placeholder are filled in again"
    assert {found[1], found[2]} == set(re.findall(r"(\w+)=\w+\(\w+,`(?:html|css)_template`", html))
    assert "Handlebars" not in html and len(html) < 20_000 and html.count(".default.compile(") == 1
    assert repeated_work.remove("let a=1;") == "let a=1;"


def test_the_name_follows_the_content_and_comments_are_left_out(built: bundle.Bundle, content: dict[str, Any]) -> None:
    other = bundle.build(["html", "image", "tabs"], ["overlay/overlay.js", "rail/rail.js"])
    again = bundle.build(["tabs", "image", "html"], ["overlay/overlay.js"])
    assert other and other.name != built.name and again and again.name == built.name
    text = content["modules"]["hl/overlay/overlay.js"]
    assert "/** Draw the component's current value. */" not in text and "async update()" in text
    assert text.count("\n") == (bundle.STATIC / "overlay/overlay.js").read_text().count("\n") + 2


def test_the_script_is_sent_compressed_to_browsers_that_understand_it(built: bundle.Bundle) -> None:
    server = bundle.Server(built)

    def answer(accepted: str) -> Any:
        headers = [(b"accept-encoding", accepted.encode())]
        return finished(server.respond(Request({"type": "http", "headers": headers})))

    assert brotli.decompress(answer("gzip, br").body) == built.script == answer("gzip").body
    assert answer("gzip, br").headers["content-encoding"] == "br"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/assets/Index-lnVPVsWk.js", IMMUTABLE),
        ("/hl/page-0123456789abcdef.js", IMMUTABLE),
        ("/hl/thumbnails/dog-0123456789abcdef.jpg", IMMUTABLE),
        ("/hl/lab/training.js", CHECKED),
        ("/assets/missing.js", None),
        ("/", None),
    ],
)
def test_only_files_with_a_hash_are_kept_without_a_check(path: str, expected: str | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent: list[Any] = []

    async def collect(message: Any) -> None:
        sent.append(message)

    finished(Caching(app)({"type": "http", "path": path}, None, collect))  # type: ignore[arg-type]
    assert dict(sent[0]["headers"]).get(b"cache-control") == (expected.encode() if expected else None)
