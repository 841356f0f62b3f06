"""Build the page and serve it: theme, queue and guard. layout.py has its elements, features.py its handlers."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from saliscope import errors, limits
from saliscope.compute import messages
from saliscope.compute.jobs import runs
from saliscope.images import examples
from saliscope.images.decoder import pool
from saliscope.page import layout, proxy
from saliscope.page.batch.folders import remove_leftovers
from saliscope.page.first_paint import bundle
from saliscope.page.first_paint.first_paint import PREVIEW, FirstPaint, head
from saliscope.page.operations.shutdown import Refusing, Shutdown
from saliscope.page.serving import arguments, endpoints
from saliscope.page.serving.caching import Caching
from saliscope.page.serving.door.connections import Connections, Heads
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.origins import hide_origins
from saliscope.page.serving.guard import Guard
from saliscope.page.serving.streams import Streams
from saliscope.zoo import settings

if TYPE_CHECKING:
    from saliscope.page.agents.server import Agents
    from saliscope.page.operations.metrics import Monitoring

PAGE = Path(__file__).resolve().parent
START = "import(new URL('hl/%s', document.baseURI)).then((page) => page.start(element, props, trigger, watch))"
"""What Gradio runs when it has created the component."""
ACCENT = "#5b5bd6"
FONT = ["system-ui", "sans-serif"]
MONO = ["ui-monospace", "monospace"]


def build() -> gr.Blocks:
    """Build the page without serving it: one component that our scripts draw, one event, and the API."""
    with gr.Blocks(title=messages.TITLE, fill_width=True, analytics_enabled=False, delete_cache=(600, 3600)) as demo:
        page = gr.HTML(
            html_template="<div></div>",  # filled by the script, because Gradio evaluates it after every message
            js_on_load=START % bundle.load().name,
            apply_default_css=False,
            padding=False,
            elem_id="hl-root",
            page=layout.PAGE.html(),
            parts=json.dumps(layout.schema()),
            terms=json.dumps(messages.LINK),
        )
        page.submit(
            _respond,
            None,
            page,
            concurrency_limit=None,  # jobs have their own queue, see compute/jobs/
            trigger_mode="multiple",
            show_progress="hidden",
            api_visibility="private",
        )
        endpoints.build()
        demo.unload(_end_session)
    arguments.register_events(demo.fns)
    demo.space_id = None  # otherwise a page on a Space fetches fonts and the Space description from other hosts
    return demo


def _respond(event: gr.EventData, request: gr.Request) -> Iterator[Any]:
    """Answer a request of the page."""
    empty = True
    for message in proxy.features().respond(event, request.session_hash):
        empty = False
        yield message
    if empty:
        yield gr.skip()  # Gradio requires a step


def _units(request: Request) -> Response:
    """Answer a request for the images of the channels of a layer."""
    data = proxy.features().channels.sprite(request.path_params["name"])
    return Response(status_code=404) if data is None else Response(data, media_type="image/webp")


def _file(path: Path) -> Callable[[Request], Response]:
    """Return a function that answers requests for a file."""
    return lambda _: FileResponse(path)


def _end_session(request: gr.Request) -> None:
    """Stop the jobs of a user who has left."""
    runs.end(request.session_hash)


def theme() -> gr.themes.Base:
    """Return a theme with neutral grays, one accent color and system fonts, so that nothing is downloaded.

    It has the colors that our style sheets use, because the page has no other components of Gradio.
    """
    plain = gr.themes.Default(
        primary_hue=gr.themes.colors.indigo,
        radius_size=gr.themes.sizes.radius_sm,
        font=FONT,
        font_mono=MONO,
    )
    both: dict[str, str] = {}
    for name, (light, dark) in {
        "body_background_fill": ("#fafafa", "#1b1b1f"),
        "background_fill_primary": ("#ffffff", "#232328"),
        "background_fill_secondary": ("#f4f4f5", "#1f1f24"),
        "block_background_fill": ("#ffffff", "#232328"),
        "input_background_fill": ("#ffffff", "#2a2a30"),
        "border_color_primary": ("#e0e0e4", "#3a3a42"),
        "input_border_color": ("#d0d0d6", "#45454e"),
        "body_text_color": ("#1b1b1f", "#fafafa"),
        "body_text_color_subdued": ("#5c5c66", "#a9a9b4"),
        "block_title_text_color": ("#3a3a42", "#d4d4dc"),
        "button_primary_background_fill": (ACCENT, ACCENT),
        "button_primary_border_color": (ACCENT, ACCENT),
        "button_secondary_background_fill": ("#ffffff", "#2a2a30"),
        "button_secondary_background_fill_hover": ("#f0f0f3", "#2c2c34"),
        "button_secondary_border_color": ("#d0d0d6", "#45454e"),
        "color_accent_soft": ("#ececfb", "#33334d"),
        "link_text_color": (ACCENT, "#a3a3f0"),
    }.items():
        both |= {name: light, f"{name}_dark": dark}
    return plain.set(**both, color_accent=ACCENT)


OPTIONS: dict[str, Any] = {
    "prevent_thread_lock": True,
    "share": False,
    "ssr_mode": False,
    "pwa": False,
    "run_history": False,
    "footer_links": [],
    "enable_monitoring": False,
    "show_error": False,
    "max_file_size": limits.FILE,
    "allowed_paths": [str(examples.ASSETS / "examples")],  # whatever the working directory
    "state_session_capacity": limits.SESSIONS,
    "max_threads": limits.JOBS + 100,  # a waiting job takes a thread, and other events must not wait for one
    "quiet": True,
}
"""How Gradio serves the page, without the features that it does not use."""


def _middleware(shutdown: Shutdown, elements: str, hosts: Hosts, agents: bool) -> list[Middleware]:
    """Return what sees every request, the outermost first."""
    return [
        Middleware(Refusing, shutdown=shutdown),
        Middleware(Guard, hosts=hosts, agents=agents),
        Middleware(GZipMiddleware, minimum_size=10_000, compresslevel=6),
        Middleware(Streams),
        Middleware(Caching),
        Middleware(FirstPaint, elements=elements),
    ]


def _routes(script: bundle.Bundle, agents: Agents | None, monitoring: Monitoring | None) -> list[BaseRoute]:
    """Return the routes besides those of Gradio."""
    return [
        Route(f"/hl/{script.name}", script.respond),
        *(agents.routes if agents else []),
        *(monitoring.routes if monitoring else []),
        Route(
            f"/hl/{examples.thumbnails_name()}",
            lambda _: Response(examples.thumbnails(), media_type="image/jpeg"),
        ),
        Route(f"/hl/{PREVIEW.name}", _file(PREVIEW)),
        Mount("/hl-examples", StaticFiles(directory=examples.ASSETS / "examples")),
        Route("/hl/lab/example.json", _file(PAGE / "lab" / "example.json")),
        Route("/hl/units/{name}", _units),
    ]


def serve(
    demo: gr.Blocks,
    *,
    model: str = "auto",
    own: Mapping[str, Any] | None = None,
    device: str = "auto",
    host: str | None = None,
    port: int | None = None,
    block: bool = True,
    agents: Agents | None = None,
    monitoring: Monitoring | None = None,
) -> str:
    """Serve the page, then load torch and the model in the background, unless a model is loaded.

    `own` has the keyword arguments of `zoo.add`.

    Returns  the address: at once if `block` is False, otherwise when the server stops
    Errors   OSError if the port is taken
    """
    pool.start()
    remove_leftovers()
    shutdown = Shutdown()
    if monitoring:
        # The requests that Gradio has not started.
        monitoring.waiting, monitoring.stopping = lambda: len(demo._queue), shutdown.requested.is_set
        runs.observers.append(monitoring.observe)
    os.environ["FORWARDED_ALLOW_IPS"] = ""  # the guard reads the address of a visitor, see `Hosts.address`
    os.environ.pop("SYSTEM", None)  # on a Space, Gradio would start a server that replaces the code of the page
    demo.queue(default_concurrency_limit=1, max_size=limits.JOBS)
    script = bundle.load()
    elements = head(script.name, None if own else settings.first_model(model))
    hosts = Hosts(host)
    errors.is_public = hosts.is_public
    connections = Connections(hosts)
    first = [Middleware(Heads, connections=connections), *([agents.middleware] if agents else [])]
    app: dict[str, Any] = {"middleware": first + _middleware(shutdown, elements, hosts, bool(agents))}
    app |= {"routes": _routes(script, agents, monitoring), "docs_url": None, "redoc_url": None, "openapi_url": None}
    if agents:
        app["lifespan"] = agents.lifespan
    running, address, _ = demo.launch(server_name=host, server_port=port, theme=theme(), app_kwargs=app, **OPTIONS)
    hide_origins(running)
    connections.limit(demo.server)
    print(messages.served(address), flush=True)
    proxy.start(model, own, device)
    if block:
        with contextlib.suppress(KeyboardInterrupt):
            shutdown.wait()
    return address
