"""Build the page and serve it: theme, styles, queue and guard. The handlers are in the tabs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from saliscope.page.serving.gradio_setup import gradio as gr  # isort: skip  (switches first)
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from saliscope import limits
from saliscope.compute import messages, model_cache
from saliscope.compute.jobs import runs
from saliscope.images import examples
from saliscope.images.decoder import pool
from saliscope.page.agents.server import Agents
from saliscope.page.api.tab import Api
from saliscope.page.batch.folders import remove_leftovers
from saliscope.page.batch.messages import STEPS
from saliscope.page.batch.tab import Batch
from saliscope.page.channels.tab import Features
from saliscope.page.compare.tab import Compare
from saliscope.page.components.components import canvas, script_of
from saliscope.page.erase.tab import Erase
from saliscope.page.first_paint import bundle
from saliscope.page.first_paint.first_paint import FirstPaint, head
from saliscope.page.lab.tab import Lab
from saliscope.page.models.tab import Models
from saliscope.page.operations.metrics import Monitoring
from saliscope.page.operations.shutdown import Refusing, Shutdown
from saliscope.page.overlay.tab import Overlay
from saliscope.page.panel import panel as settings_panel
from saliscope.page.ranking.tab import Ranking
from saliscope.page.serving import arguments, endpoints
from saliscope.page.serving.blocks import Blocks
from saliscope.page.serving.caching import Caching
from saliscope.page.serving.door.connections import Connections, Heads
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.origins import hide_origins
from saliscope.page.serving.guard import Guard, install_no_links
from saliscope.page.serving.streams import Streams
from saliscope.page.shared.glossary import GLOSSARY
from saliscope.page.shared.messages import NAVIGATION
from saliscope.page.shared.tab import Page, Tab
from saliscope.zoo import settings

TABS: tuple[type[Tab], ...] = (Overlay, Compare, Models, Ranking, Features, Batch, Erase, Lab, Api)
STATIC = Path(__file__).resolve().parent / "static"
ACCENT = "#5b5bd6"
FONT = ["system-ui", "sans-serif"]
MONO = ["ui-monospace", "monospace"]


def build() -> gr.Blocks:
    """Build the page without serving it."""
    install_no_links()
    with Blocks(title=messages.TITLE, fill_width=True, analytics_enabled=False, delete_cache=(600, 3600)) as demo:
        with gr.Row(elem_id="hl-top"):
            gr.HTML(
                f"<a id='hl-skip' href='#hl-status'>{messages.SKIP}</a>"
                f"<h1>{messages.TITLE}</h1><p>{messages.TAGLINE}</p>",
                elem_id="hl-head",
                padding=False,
            )
            views: dict[str, Any] = {"views": _views(), "more": _views(True), "within": _within()}
            canvas("navigation/navigation", "hl-navigation", terms=NAVIGATION, glossary=GLOSSARY, **views)
        fold = canvas("page/fold", "hl-fold", words=messages.FOLDED)
        with gr.Row(elem_id="hl-main"):
            with gr.Column(scale=1, min_width=320, elem_id="hl-left"):
                panel = settings_panel.build(lambda: canvas("batch/steps", "hl-steps", terms=STEPS))
            with gr.Column(scale=2, min_width=320, elem_id="hl-right"):
                page = Page(demo, panel, canvas("page/status", "hl-status", terms=messages.STATUS), fold)
                tabs = []
                with gr.Tabs(elem_id="hl-tabs"):
                    for kind in TABS:
                        with gr.Tab(kind.title, id=kind.id):
                            if parts := _parts(kind):
                                canvas("navigation/parts", f"hl-parts-{kind.id}", parts=parts, shown=kind.id)
                            tabs.append(kind(page))
        settings_panel.wire(panel)
        for tab in tabs:
            tab.wire()
        endpoints.build()
        demo.unload(_end_session)
    for event in demo.fns.values():
        # By default Gradio sends progress updates to all outputs and copies their values, which takes 0.2 s per click,
        # and draws the elapsed time in every frame. The page's own status shows the progress.
        event.show_progress_on = []
    arguments.register_events(demo.fns)
    demo.space_id = None  # otherwise a page on a Space fetches fonts and the Space description from other hosts
    return demo


def _views(in_menu: bool = False) -> list[tuple[str, str]]:
    """Return id and title of the tabs that are always visible, or of those in the menu."""
    return [(tab.id, tab.title) for tab in TABS if tab.in_menu == in_menu and not tab.within]


def _within() -> dict[str, str]:
    """Return the entry of the navigation of each tab that has none of its own."""
    return {tab.id: tab.within for tab in TABS if tab.within}


def _parts(shown: type[Tab]) -> list[tuple[str, str]]:
    """Return id and title of the tabs that share an entry of the navigation, or an empty list if it has only one."""
    entry = shown.within or shown.id
    parts = [(tab.id, tab.part or tab.title) for tab in TABS if entry in (tab.id, tab.within)]
    return parts if len(parts) > 1 else []


def _waiting(demo: gr.Blocks) -> int:
    """Return the number of requests that Gradio has not started."""
    return len(demo._queue)


def _compress(script: bundle.Server) -> None:
    """Compress the script for slow lines, after everything that the first visitor waits for."""
    model_cache.ready.wait()
    script.compress()


def _thumbnail(request: Request) -> Response:
    """Answer a request for the thumbnail of an example."""
    requested = request.path_params["name"]
    ident = next((ident for ident, name in examples.thumbnail_names().items() if name == requested), None)
    content = None if ident is None else examples.thumbnail(ident)
    return Response(content, 200 if content else 404, media_type="image/jpeg")


def _first_view(demo: gr.Blocks) -> tuple[set[str], set[str]]:
    """Return the types of all components, which Gradio loads at once, and the scripts of those that are visible."""
    types, scripts = {"state"}, set()  # Gradio loads the module of states for functions of the API
    for component in demo.blocks.values():
        types.add(component.get_block_name())
        parent: Any = component
        while parent and not (isinstance(parent, gr.Tab) and parent.id != TABS[0].id):
            parent = parent.parent
        if parent is None and (script := script_of(component)):
            scripts.add(script)
    return types, scripts


def _end_session(request: gr.Request) -> None:
    """Stop the jobs of a user who has left."""
    runs.end(request.session_hash)


def theme() -> gr.themes.Base:
    """Return a theme with neutral grays, one accent color and system fonts, so that nothing is downloaded."""
    plain = gr.themes.Default(
        primary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.zinc,
        spacing_size=gr.themes.sizes.spacing_md,
        radius_size=gr.themes.sizes.radius_sm,
        text_size=gr.themes.sizes.text_md,
        font=FONT,
        font_mono=MONO,
    )
    both: dict[str, str] = {}
    for name, (light, dark) in {
        "body_background_fill": ("#fafafa", "#1b1b1f"),
        "background_fill_primary": ("#ffffff", "#232328"),
        "background_fill_secondary": ("#f4f4f5", "#1f1f24"),
        "block_background_fill": ("#ffffff", "#232328"),
        "block_label_background_fill": ("#ffffff", "#232328"),
        "input_background_fill": ("#ffffff", "#2a2a30"),
        "border_color_primary": ("#e0e0e4", "#3a3a42"),
        "block_border_color": ("#e0e0e4", "#3a3a42"),
        "input_border_color": ("#d0d0d6", "#45454e"),
        "body_text_color": ("#1b1b1f", "#fafafa"),
        "body_text_color_subdued": ("#5c5c66", "#a9a9b4"),
        "block_label_text_color": ("#5c5c66", "#a9a9b4"),
        "block_title_text_color": ("#3a3a42", "#d4d4dc"),
        "button_primary_background_fill": (ACCENT, ACCENT),
        "button_primary_background_fill_hover": ("#4a4ac4", "#6d6de0"),
        "button_primary_text_color": ("#ffffff", "#ffffff"),
        "button_primary_border_color": (ACCENT, ACCENT),
        "button_secondary_background_fill": ("#ffffff", "#2a2a30"),
        "button_secondary_background_fill_hover": ("#f0f0f3", "#2c2c34"),
        "button_secondary_border_color": ("#d0d0d6", "#45454e"),
        "color_accent_soft": ("#ececfb", "#33334d"),
        "link_text_color": (ACCENT, "#a3a3f0"),
    }.items():
        both |= {name: light, f"{name}_dark": dark}
    return plain.set(
        **both,
        color_accent=ACCENT,
        block_shadow="none",
        block_shadow_dark="none",
        block_label_shadow="none",
        button_primary_shadow="none",
        button_secondary_shadow="none",
        input_shadow="none",
        input_shadow_focus="none",
    )


def style() -> str:
    """Return the style sheet of the page, followed by those of its features."""
    sheets = sorted(STATIC.rglob("*.css"), key=lambda path: (path.name != "page.css", path.name))
    return "\n".join(path.read_text(encoding="utf-8") for path in sheets)


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


def _middleware(
    shutdown: Shutdown, elements: str | None, scripts: bundle.Bundle | None, hosts: Hosts, agents: bool
) -> list[Middleware]:
    """Return what sees every request, the outermost first."""
    return [
        Middleware(Refusing, shutdown=shutdown),
        Middleware(Guard, hosts=hosts, agents=agents),
        Middleware(GZipMiddleware, minimum_size=10_000, compresslevel=6),
        Middleware(Streams),
        Middleware(Caching),
        Middleware(FirstPaint, elements=elements, bundle=scripts),
    ]


def _routes(script: bundle.Server | None, agents: Agents | None, monitoring: Monitoring | None) -> list[BaseRoute]:
    """Return the routes besides those of Gradio."""
    return [
        *([Route(f"/hl/{script.bundle.name}", script.respond)] if script else []),
        *(agents.routes if agents else []),
        *(monitoring.routes if monitoring else []),
        Route("/hl/thumbnails/{name}", _thumbnail),
        Mount("/hl-examples", StaticFiles(directory=examples.ASSETS / "examples")),
        Mount("/hl", StaticFiles(directory=STATIC)),
    ]


def serve(
    demo: gr.Blocks,
    *,
    model: str = "auto",
    own: Mapping[str, Any] | None = None,
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
        monitoring.waiting, monitoring.stopping = partial(_waiting, demo), shutdown.requested.is_set
        runs.observers.append(monitoring.observe)
    os.environ["FORWARDED_ALLOW_IPS"] = ""  # the guard reads the address of a visitor, see `Hosts.address`
    demo.queue(default_concurrency_limit=1, max_size=limits.JOBS)
    scripts = bundle.build(*_first_view(demo))
    script = bundle.Server(scripts) if scripts else None
    elements = None if own else head(settings.first_model(model))
    hosts = Hosts(host)
    connections = Connections(hosts)
    first = [Middleware(Heads, connections=connections), *([agents.middleware] if agents else [])]
    app: dict[str, Any] = {"middleware": first + _middleware(shutdown, elements, scripts, hosts, bool(agents))}
    app |= {"routes": _routes(script, agents, monitoring), "docs_url": None, "redoc_url": None, "openapi_url": None}
    if agents:
        app["lifespan"] = agents.lifespan
    running, address, _ = demo.launch(
        server_name=host, server_port=port, theme=theme(), css=style(), app_kwargs=app, **OPTIONS
    )
    hide_origins(running)
    connections.limit(demo.server)
    print(messages.served(address), flush=True)
    if not model_cache.ready.is_set():
        model_cache.start(model, own=own)
    if script:
        threading.Thread(target=_compress, args=[script], name="compress", daemon=True).start()
    if block:
        with contextlib.suppress(KeyboardInterrupt):
            shutdown.wait()
    return address
