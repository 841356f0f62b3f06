"""The left column: the picture and the settings; and what a choice elsewhere on the page changes in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui import examples, links, words
from ui.engine import model_cache, runs
from ui.engine.messages import Loaded, Refused, Request, Settings
from ui.serving import uploads
from ui.tabs.components import Choice, Picture, canvas

SOURCES = ["upload", "clipboard", "webcam"]


@dataclass
class Panel:
    """The column's components; `inputs` are the settings in the order in which handlers receive them."""

    picture: Picture
    examples: gr.HTML
    model: Choice
    notice: gr.HTML
    layer: Choice
    target: Choice
    top: gr.HTML
    method: Choice
    options: gr.HTML
    explain: gr.Button
    stop: gr.Button
    link: gr.Button
    linked: gr.HTML

    @property
    def inputs(self) -> list[Any]:
        return [self.picture, self.model, self.layer, self.target, self.method, self.options]

    @property
    def outputs(self) -> list[Any]:
        """Everything that a resolved request may change."""
        return [*self.inputs, self.examples, self.notice]


def build() -> Panel:
    """Lay the column out."""
    items = [examples.small(each) for each in examples.all_examples().values()]
    picture = Picture(
        sources=SOURCES,
        type="filepath",
        height=210,
        label=words.PICTURE,
        elem_id="hl-picture",
        buttons=[],
        interactive=True,
        alt_text=words.PICTURE_ALT,
        placeholder=words.PLACEHOLDER,
    )
    strip = canvas("examples", "hl-examples", items=items)
    with gr.Column(elem_id="hl-settings"):
        model = Choice([], label=words.MODEL_LABEL, elem_id="hl-model", interactive=True)
        notice = canvas("findings", "hl-notice")
        layer = Choice([], label=words.LAYER_LABEL, elem_id="hl-layer", interactive=True)
        target = Choice(
            [(words.TOP_CHOICE, "")], value="", label=words.CLASS_LABEL, elem_id="hl-class", interactive=True
        )
        top = canvas("classes", "hl-top5", look="chips")
        method = Choice([], label=words.METHOD_LABEL, elem_id="hl-method", interactive=True)
        with gr.Accordion(words.OPTIONS, open=False, elem_id="hl-more"):
            options = canvas("options", "hl-options", value={}, none=words.NO_OPTIONS)
    with gr.Row(elem_id="hl-actions"):
        explain = gr.Button(words.EXPLAIN, variant="primary", elem_id="hl-explain", min_width=100, scale=2, size="md")
        stop = gr.Button(words.STOP, elem_id="hl-stop", interactive=False, min_width=70, size="md")
        link = gr.Button(words.COPY_LINK, elem_id="hl-link", min_width=90, size="md")
    linked = canvas("linked", "hl-linked")
    return Panel(picture, strip, model, notice, layer, target, top, method, options, explain, stop, link, linked)


def wire(panel: Panel) -> None:
    """What happens within the column alone."""
    panel.stop.click(stopped, queue=False, api_visibility="private", show_progress="hidden")
    panel.link.click(
        None,
        [panel.examples, panel.model, panel.layer, panel.target, panel.method, panel.options],
        panel.linked,
        js=links.COPY,
        api_visibility="private",
    )


def stopped(request: gr.Request) -> None:
    """Stop what this visitor's page is computing; the generator itself shows its best map."""
    runs.stop(request.session_hash)


def asked(picture: str | None, model: Any, layer: Any, target: Any, method: Any, options: Any) -> Request:
    """The settings on the page as a request.

    Errors   Refused for a picture that is not an upload of this server.
    """
    known = options if isinstance(options, dict) else {}
    values = known.get("values")
    if picture is not None:
        try:
            picture = str(uploads.inside_uploads(picture))
        except uploads.Refused as error:
            raise Refused(str(error)) from None
    # After a change of model the old names of layer and class need not exist any more: no fault of the visitor's.
    moved = bool(known.get("model")) and known.get("model") != (model or model_cache.first_model())
    return Request(
        picture,
        model or "",
        layer or "",
        target or "",
        method or "",
        values if isinstance(values, dict) else {},
        forgiving=moved,
    )


def changes(event: Any, panel: Panel) -> dict[Any, Any]:
    """What a click elsewhere on the page (an example, a class, a stage, a remedy) means for the settings."""
    data = event if isinstance(event, dict) else {}
    if "example" in data:
        chosen = examples.all_examples().get(str(data["example"]))
        return {panel.picture: str(chosen.path), panel.examples: {"chosen": chosen.id}} if chosen else {}
    fields = {"model": panel.model, "layer": panel.layer, "target": panel.target, "method": panel.method}
    wanted = data.get("remedy", data)
    wanted = wanted if isinstance(wanted, dict) else {}
    return {fields[name]: value for name, value in wanted.items() if name in fields and isinstance(value, str)}


def remedied(event: Any, options: Any) -> dict[str, Any] | None:
    """The options with a remedy's values in them; None where it changes none."""
    remedy = event.get("remedy") if isinstance(event, dict) else None
    if not isinstance(remedy, dict):
        return None
    values = {name: value for name, value in remedy.items() if name not in ("model", "layer", "target", "method")}
    if not values:
        return None
    known = options if isinstance(options, dict) else {}
    return {**known, "values": {**(known.get("values") or {}), **values}}


def resolved(settings: Settings, request: Request, known: Any, panel: Panel, form: tuple[Any, Any]) -> dict[Any, Any]:
    """Bring the column in line with what a request was resolved to; only what differs is sent."""
    known = known if isinstance(known, dict) else {}
    loaded, found = settings.loaded, {}
    now = {"model": loaded.name, "layer": settings.layer, "method": settings.method.name}
    if known.get("model") != now["model"]:
        found |= offered(panel, value=loaded.name)
        found[panel.layer] = gr.update(choices=layers(loaded), value=settings.layer)
        found[panel.target] = gr.update(choices=[(words.TOP_CHOICE, ""), *loaded.names], value=_class(settings))
    else:
        if request.layer != settings.layer:
            found[panel.layer] = gr.update(value=settings.layer)
        if request.target != _class(settings):
            found[panel.target] = gr.update(value=_class(settings))
    if {**known, **now} != known or request.method != now["method"]:
        listed = [(words.method_choice(each), each.name) for each in model_cache.list_methods(loaded, settings.layer)]
        found[panel.method] = gr.update(choices=listed, value=now["method"])
    schema, values = form
    options = {**now, "schema": schema, "values": values}
    if options != known:
        found[panel.options] = options
    return found


def offered(panel: Panel, **chosen: str) -> dict[Any, Any]:
    """The list of models, and what went wrong with the one that should have been the first; `value` chooses one."""
    listed = [(words.model_choice(info), info.name) for info in model_cache.list_models()]
    trouble = model_cache.trouble()
    return {
        panel.model: gr.update(choices=listed, **chosen),
        panel.notice: {"items": [{"sentence": trouble}] if trouble else []},
    }


def _class(settings: Settings) -> str:
    return "" if settings.target is None else settings.loaded.names[settings.target]


def layers(loaded: Loaded) -> list[tuple[str, str]]:
    """The layers to choose from: the stages first, from the last to the first, then every call in its order."""
    stages = [each for each in loaded.layers if each.stage or each.name == loaded.default]
    rest = [each for each in loaded.layers if each not in stages]
    return [(words.layer_choice(each), each.name) for each in [*reversed(stages), *rest]]
