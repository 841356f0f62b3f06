"""Puts the page together and serves it: theme, style, queue, guard. No handler lives here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ui.serving.gradio_setup import gradio as gr  # isort: skip  (switches first)
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from ui import examples, limits, words
from ui.channels.tab import Features
from ui.compare.tab import Compare
from ui.engine import model_cache, runs
from ui.lab.tab import Lab
from ui.many.tab import Many
from ui.ranking.tab import Ranking
from ui.serving import endpoints
from ui.serving.guard import Guard, install_no_links
from ui.tabs import picture_panel
from ui.tabs.api_tab import Api
from ui.tabs.components import canvas
from ui.tabs.overlay_tab import Overlay
from ui.tabs.tab import Page, Tab

TABS: tuple[type[Tab], ...] = (Overlay, Compare, Ranking, Features, Many, Lab, Api)
STATIC = Path(__file__).resolve().parent / "static"
ACCENT = "#5b5bd6"
FONT = ["system-ui", "sans-serif"]
MONO = ["ui-monospace", "monospace"]


def build() -> gr.Blocks:
    """The whole page, not yet served."""
    install_no_links()
    with gr.Blocks(title=words.TITLE, fill_width=True, analytics_enabled=False, delete_cache=(600, 3600)) as demo:
        gr.HTML(
            f"<a id='hl-skip' href='#hl-status'>{words.SKIP}</a><h1>{words.TITLE}</h1><p>{words.TAGLINE}</p>",
            elem_id="hl-head",
            padding=False,
        )
        fold = canvas("page/fold", "hl-fold", words=words.FOLDED)
        with gr.Row(elem_id="hl-main"):
            with gr.Column(scale=1, min_width=320, elem_id="hl-left"):
                panel = picture_panel.build()
            with gr.Column(scale=2, min_width=320, elem_id="hl-right"):
                page = Page(demo, panel, canvas("page/status", "hl-status"), fold)
                tabs = []
                with gr.Tabs(elem_id="hl-tabs"):
                    for kind in TABS:
                        with gr.Tab(kind.title, id=kind.id):
                            tabs.append(kind(page))
        picture_panel.wire(panel)
        for tab in tabs:
            tab.wire()
        endpoints.build()
        demo.unload(_left)
    for event in demo.fns.values():
        # By default Gradio tells all outputs of each step of an event, and copies whatever they hold: 0.2 s a click.
        event.show_progress_on = [page.status]
    demo.space_id = None  # on a Space the page would fetch fonts and the Space's description from other hosts
    return demo


def _left(request: gr.Request) -> None:
    """The visitor has left."""
    runs.end(request.session_hash)


def theme() -> gr.themes.Base:
    """Neutral greys and one accent; system fonts, so that nothing is fetched."""
    sizes = {
        "spacing_size": gr.themes.sizes.spacing_md,
        "radius_size": gr.themes.sizes.radius_sm,
        "text_size": gr.themes.sizes.text_md,
    }
    plain = gr.themes.Default(
        primary_hue=gr.themes.colors.indigo, neutral_hue=gr.themes.colors.zinc, font=FONT, font_mono=MONO, **sizes
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
        "button_secondary_background_fill_hover": ("#f0f0f3", "#34343c"),
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
    """The style of the page, then those of its rooms."""
    sheets = sorted(STATIC.rglob("*.css"), key=lambda path: (path.name != "page.css", path.name))
    return "\n".join(path.read_text(encoding="utf-8") for path in sheets)


def serve(
    demo: gr.Blocks,
    *,
    model: str = "auto",
    own: Mapping[str, Any] | None = None,
    host: str | None = None,
    port: int | None = None,
    block: bool = True,
) -> str:
    """Serve the page, then load torch in the background; `own` is what `models.add` takes besides the model's name.

    Returns  the address, when `block` is False; else at the end of the server
    Errors   OSError when the port is taken
    """
    if limits.SHARED_GPU:
        model_cache.start(model, 0.0, own)  # models must be on the GPU's list before the server runs
        model_cache.ready.wait()
    demo.queue(default_concurrency_limit=1, max_size=limits.QUEUE)
    _, address, _ = demo.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        share=False,
        ssr_mode=False,
        pwa=False,
        run_history=False,
        footer_links=[],
        enable_monitoring=False,
        show_error=False,
        max_file_size=limits.FILE,
        allowed_paths=[str(examples.ASSETS / "examples")],  # whatever the working directory
        state_session_capacity=limits.SESSIONS,
        theme=theme(),
        css=style(),
        quiet=True,
        app_kwargs={
            "middleware": [Middleware(Guard)],
            "routes": [Mount("/hl", StaticFiles(directory=STATIC))],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
    )
    print(words.served(address), flush=True)
    if not limits.SHARED_GPU:
        model_cache.start(model, own=own)
    if block:
        with contextlib.suppress(KeyboardInterrupt):
            demo.block_thread()
    return address
