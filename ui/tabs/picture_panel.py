"""The left column: the picture, the settings, and what a click elsewhere on the page changes in them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui import examples, words
from ui.engine import model_cache, packing, runs
from ui.engine.messages import Loaded, Refused, Scene, Settings
from ui.engine.request import NAMES, Request, split
from ui.methods import picker as methods
from ui.serving import bands, uploads
from ui.share import links
from ui.tabs.components import Choice, Named, Picture, canvas

SOURCES = ["upload", "clipboard", "webcam"]
ASKS = ["hl-examples", "hl-top5", "hl-notice", "hl-overlay", "hl-bars", "hl-findings", "hl-strip", "hl-method"]
ASKS += ["hl-ranking", "hl-ranking-compare"]
"""The components whose clicks change the settings, as the address must know at once."""


@dataclass
class Panel:
    """The column's components."""

    picture: Picture
    bands: gr.HTML
    examples: gr.HTML
    model: Choice
    notice: gr.HTML
    layer: Choice
    target: Choice
    pin: gr.Checkbox
    method: Named
    options: gr.HTML
    explain: gr.Button
    stop: gr.Button
    link: gr.Button
    linked: gr.HTML
    address: gr.HTML
    drop: gr.HTML

    @property
    def named(self) -> dict[str, Any]:
        """The lists of names, by the fields of a `Request`."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def inputs(self) -> list[Any]:
        """The settings, as `from_form` takes them."""
        return [self.picture, *self.named.values(), self.bands, self.options]

    @property
    def outputs(self) -> list[Any]:
        """What a click or a resolved request may change."""
        return [*self.inputs, self.examples, self.notice, self.pin]


def build() -> Panel:
    """Lay the column out."""
    items = [examples.small(example) for example in examples.all_examples().values()]
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
    picker = canvas("panel/bands", "hl-bands", title=words.BANDS_TITLE)
    strip = canvas("panel/examples", "hl-examples", items=items)
    with gr.Column(elem_id="hl-settings"):
        model = Choice([], label=words.MODEL_LABEL, elem_id="hl-model", interactive=True)
        notice = canvas("panel/findings", "hl-notice")
        layer = Choice([], label=words.LAYER_LABEL, elem_id="hl-layer", interactive=True)
        target = Choice(
            [(words.TOP_CHOICE, "")], value="", label=words.CLASS_LABEL, elem_id="hl-class", interactive=True
        )
        pin = gr.Checkbox(label=words.PIN, value=False, elem_id="hl-pin", container=False, interactive=True)
        method = methods.picker(words.METHOD_LABEL, "hl-method")
        with gr.Accordion(words.OPTIONS, open=False, elem_id="hl-more"):
            options = canvas("panel/options", "hl-options", value={}, none=words.NO_OPTIONS)
    with gr.Row(elem_id="hl-actions"):
        explain = gr.Button(words.EXPLAIN, variant="primary", elem_id="hl-explain", min_width=100, scale=2, size="md")
        stop = gr.Button(words.STOP, elem_id="hl-stop", interactive=False, min_width=70, size="md")
        link = gr.Button(words.COPY_LINK, elem_id="hl-link", min_width=90, size="md")
    linked = canvas("panel/linked", "hl-linked")
    address = canvas("page/address", "hl-address", asks=ASKS, tops=[words.TOP_CHOICE, *words.STRONGEST.values()])
    drop = canvas("page/drop", "hl-drop", words=words.DROP)
    canvas("page/lists", "hl-lists")
    return Panel(
        picture,
        picker,
        strip,
        model,
        notice,
        layer,
        target,
        pin,
        method,
        options,
        explain,
        stop,
        link,
        linked,
        address,
        drop,
    )


def wire(panel: Panel) -> None:
    """What happens within the column alone."""
    panel.stop.click(stopped, queue=False, api_visibility="private", show_progress="hidden")
    panel.link.click(None, None, panel.linked, js=links.script("copy"), api_visibility="private")
    # Before the events that ask the server: Gradio begins an event's second handler after the end of the first.
    at_once: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", "show_progress": "hidden"}
    changed = [*(choice.input for choice in panel.named.values()), panel.pin.input, panel.bands.select]
    gr.on([*changed, panel.explain.click], None, panel.inputs[1:], js=links.script("chosen"), **at_once)
    panel.picture.input(None, panel.picture, js=links.script("pictured"), **at_once)


def stopped(request: gr.Request) -> None:
    """End this visitor's run; its own handler shows the best map so far."""
    runs.stop(request.session_hash)


def picked(settings: Settings, request: Request, picker: Any, panel: Panel) -> dict[Any, Any]:
    """The picker of bands for the picture that was opened; it stays where it says so already, as a visitor left it."""
    packed = packing.bands(settings, request.bands)
    stands = isinstance(picker, dict) and {**picker, "id": 0} == {**packed, "id": 0}
    return {} if stands else {panel.bands: {**packed, "id": packing.number()}}


def pictured(path: str | None, form: Any, picker: Any, pin: Any, panel: Panel) -> dict[Any, Any]:
    """What another picture means for the column: no example, its own top class, bands unknown yet, a PNG of what no
    browser shows.
    """
    updates: dict[Any, Any] = {panel.examples: {"chosen": None}, panel.bands: {"text": _text(picker)}}
    return updates | _own_class(pin, panel) | previewed(path, form, picker, panel)


def _own_class(pin: Any, panel: Panel) -> dict[Any, Any]:
    """A new picture goes back to its own top class, unless the class is pinned."""
    return {} if pin is True else {panel.target: ""}


def previewed(path: str | None, form: Any, picker: Any, panel: Panel) -> dict[Any, Any]:
    """The picture as a PNG of the bands that are picked, where browsers do not show the file; nothing for others."""
    name = form.get("model") if isinstance(form, dict) else None
    channels = model_cache.load(name).model.channels if isinstance(name, str) and model_cache.has(name) else None
    with contextlib.suppress(Refused):  # the answer says why
        source = bands.original(uploads.inside_uploads(path)) if path else None
        shown = bands.preview(source, channels, _text(picker)) if source else None
        return {panel.picture: str(shown)} if shown else {}
    return {}


def _text(picker: Any) -> str:
    """The bands that the picker asks for, as a `Request` does."""
    text = picker.get("text") if isinstance(picker, dict) else None
    return text if isinstance(text, str) else ""


def changes(data: dict[str, Any], panel: Panel, form: Any, pin: Any = False) -> dict[Any, Any]:
    """What a click elsewhere on the page (an example, a class, a stage, a remedy) means for the settings; or a picture
    dropped on it.
    """
    if "dropped" in data:
        return dropped(str(data["dropped"]), form, pin, panel)
    if "address" in data:
        return addressed(data, panel, form)
    if "example" in data:
        chosen = examples.all_examples().get(str(data["example"]))
        if chosen is None:
            return {}
        return {panel.picture: str(chosen.path), panel.examples: {"chosen": chosen.id}, **_own_class(pin, panel)}
    names, _ = split(data.get("remedy", data))
    _, options = split(data.get("remedy"))
    changed: dict[Any, Any] = {panel.named[name]: value for name, value in names.items()}
    if options:
        form = form if isinstance(form, dict) else {}
        changed[panel.options] = {**form, "values": {**(form.get("values") or {}), **options}}
    return changed


def dropped(path: str, form: Any, pin: Any, panel: Panel) -> dict[Any, Any]:
    """A picture that was dropped or pasted somewhere on the page, once it is uploaded."""
    with contextlib.suppress(Refused):
        path = str(uploads.inside_uploads(path))
        return {panel.picture: path} | pictured(path, form, None, pin, panel)
    return {}


def addressed(data: dict[str, Any], panel: Panel, form: Any) -> dict[Any, Any]:
    """The settings of another step of the browser's history."""
    query, form = links.parsed(data["address"]), form if isinstance(form, dict) else {}
    asked, example, _ = links.read(query, data)
    shown = previewed(asked.picture, form, {"text": asked.bands}, panel) if example is None else {}
    return {
        panel.picture: asked.picture,
        panel.examples: {"chosen": example.id if example else None},
        panel.pin: query.get("pin") == "1",
        panel.bands: {"text": asked.bands},
        panel.options: {**form, "values": asked.options},
        **{choice: getattr(asked, name) for name, choice in panel.named.items()},
        **shown,
    }


def resolved(settings: Settings, request: Request, form: Any, panel: Panel) -> dict[Any, Any]:
    """Bring the column in line with a request's settings; only what differs is sent.

    `form` is the value of the options' component: it says for which model, layer and method the lists were made.
    """
    form = form if isinstance(form, dict) else {}
    loaded, names = settings.loaded, settings.names
    listed = {name: names[name] for name in ("model", "layer", "method")}
    updates: dict[Any, Any] = {}
    if form.get("model") != loaded.name:
        updates |= offered(panel, value=loaded.name)
        updates[panel.layer] = gr.update(choices=layers(loaded), value=names["layer"])
        choices = [(words.STRONGEST.get(loaded.model.task, words.TOP_CHOICE), "")]
        choices += [names["target"]] * bool(names["target"]) if loaded.finds else loaded.names
        label = words.THINGS[loaded.model.task][1] if loaded.finds else words.CLASS_LABEL
        updates[panel.target] = gr.update(choices=choices, value=names["target"], label=label)
    else:
        for name in ("layer", "target"):
            if getattr(request, name) != names[name]:
                updates[panel.named[name]] = gr.update(value=names[name])
    if settings.unit:  # no list of classes has it
        choices = [(words.TOP_CHOICE, ""), names["target"], *loaded.names]
        updates[panel.target] = gr.update(choices=choices, value=names["target"], label=words.CLASS_LABEL)
    if any(form.get(name) != names[name] for name in ("model", "layer")):
        updates[panel.method] = methods.offered(settings)
    elif request.method != names["method"]:
        updates[panel.method] = names["method"]
    options = {**listed, "schema": packing.schema(settings), "values": settings.options}
    if options != form:
        updates[panel.options] = options
    return updates


def found(step: Scene, request: Request, panel: Panel) -> dict[Any, Any]:
    """What was found in the picture, to choose from."""
    first = words.STRONGEST[step.settings.loaded.model.task]
    value = step.chosen.name if step.chosen and request.target else ""
    return {panel.target: gr.update(choices=[(first, ""), *(each.name for each in step.found)], value=value)}


def offered(panel: Panel, **chosen: str) -> dict[Any, Any]:
    """The list of models, and why the first could not be loaded where that is so; `value` chooses one."""
    infos = model_cache.list_models()
    titled = {info.name for info in infos}
    # A list shows a hundred names until one types: a network's other weights come behind all networks.
    infos.sort(key=lambda info: info.name.partition(":")[0] in titled - {info.name})
    listed = [(words.model_choice(info), info.name) for info in infos]
    error = model_cache.loading_error()
    return {
        panel.model: gr.update(choices=listed, **chosen),
        panel.notice: {"items": [{"sentence": error}] if error else []},
    }


def layers(loaded: Loaded) -> list[tuple[str, str]]:
    """The layers to choose from: the stages, last first, then all other calls in their order."""
    stages = [layer for layer in loaded.layers if layer.stage or layer.name == loaded.default]
    rest = [layer for layer in loaded.layers if layer not in stages]
    return [(words.layer_choice(layer), layer.name) for layer in [*reversed(stages), *rest]]
