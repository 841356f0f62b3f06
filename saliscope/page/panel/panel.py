"""The left column with the image and the settings, and how other clicks on the page change the settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from saliscope.compute import messages, model_cache, text_messages
from saliscope.compute.answers import LoadedModel, Scene, Settings
from saliscope.compute.bundles import links
from saliscope.compute.channels import network
from saliscope.compute.jobs import runs
from saliscope.compute.objects import messages as object_messages
from saliscope.compute.request import NAMES, Request, split
from saliscope.errors import Refused
from saliscope.images import bands, examples, uploads
from saliscope.images.decoder import pool
from saliscope.page.components import list_columns, view
from saliscope.page.components.components import ImageUpload, Named, canvas, choice, example_items, update_choice
from saliscope.page.methods import picker as methods
from saliscope.page.panel import messages as panel_messages
from saliscope.page.panel import preprocessing

if TYPE_CHECKING:
    from saliscope import zoo

SOURCES: list[Literal["upload", "webcam", "clipboard"]] = ["upload", "clipboard", "webcam"]
CLICKABLE = ["hl-examples", "hl-top5", "hl-notice", "hl-overlay", "hl-bars", "hl-findings", "hl-strip", "hl-method"]
CLICKABLE += ["hl-ranking", "hl-model", "hl-layer", "hl-class", "hl-status", "hl-preprocessing", "hl-crop"]
"""The ids of components whose clicks change the settings, which the address follows at once."""


@dataclass
class Panel:
    """The components of the column."""

    image: ImageUpload
    crop: gr.HTML
    bands: gr.HTML
    examples: gr.HTML
    model: Named
    notice: gr.HTML
    preprocessing: gr.HTML
    layer: Named
    target: Named
    pin: gr.Checkbox
    method: Named
    options: gr.HTML
    explain: gr.Button
    stop: gr.Button
    link: gr.Button
    link_field: gr.HTML
    address: gr.HTML

    @property
    def choices(self) -> dict[str, Any]:
        """The name selections, by field of a `Request`."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def inputs(self) -> list[Any]:
        """The settings in the order of the arguments of `from_form`."""
        return [self.image, *self.choices.values(), self.bands, self.options]

    @property
    def outputs(self) -> list[Any]:
        """The components that a click or a resolved request may change."""
        return [*self.inputs, self.examples, self.notice, self.preprocessing, self.crop, self.pin]


def build(below_image: Callable[[], object] = lambda: None) -> Panel:
    """Create the layout of the column; `below_image` creates more components below the image."""
    gr.HTML(panel_messages.UNUSED, elem_id="hl-unused", padding=False)
    image = ImageUpload(
        sources=SOURCES,
        type="filepath",
        height=210,
        label=messages.IMAGE,
        elem_id="hl-image",
        buttons=[],
        interactive=True,
        alt_text=messages.IMAGE_ALT,
        placeholder=messages.PLACEHOLDER,
    )
    below_image()
    crop = canvas("panel/crop", "hl-crop", terms=panel_messages.CROP, image=image.elem_id)
    picker = canvas("panel/bands", "hl-bands", terms=panel_messages.BANDS, image=image.elem_id)
    strip = canvas(
        "panel/examples", "hl-examples", items=example_items(), terms=panel_messages.EXAMPLES, events=["explain"]
    )
    with gr.Column(elem_id="hl-settings"):
        model = choice("hl-model", messages.MODEL_LABEL, "model")
        notice = canvas("panel/findings", "hl-notice")
        form = canvas("preprocessing/preprocessing", "hl-preprocessing", terms=panel_messages.PREPROCESSING)
        layer = choice("hl-layer", messages.LAYER_LABEL, "layer")
        top: list[str | tuple[str, str]] = [(messages.TOP_CHOICE, "")]
        fields: dict[str, Any] = {"fields": text_messages.FIELD, "sentences": False}
        target = choice("hl-class", messages.CLASS_LABEL, "target", top, "text/target", **fields)
        pin = gr.Checkbox(label=messages.PIN, value=False, elem_id="hl-pin", container=False, interactive=True)
        method = methods.picker(messages.METHOD_LABEL, "hl-method")
        with gr.Accordion(messages.OPTIONS, open=False, elem_id="hl-more"):
            options = canvas("panel/options", "hl-options", value={}, terms=panel_messages.OPTIONS)
    with gr.Row(elem_id="hl-actions"):
        explain = gr.Button(
            messages.EXPLAIN, variant="primary", elem_id="hl-explain", min_width=100, scale=2, size="md"
        )
        stop = gr.Button(messages.STOP, elem_id="hl-stop", interactive=False, min_width=70, size="md")
        link = gr.Button(messages.COPY_LINK, elem_id="hl-link", min_width=90, size="md")
    link_field = canvas("panel/link_field", "hl-linked", terms=messages.LINK)
    address = canvas("page/page", "hl-address", asks=CLICKABLE, terms=messages.LINK)
    return Panel(
        image,
        crop,
        picker,
        strip,
        model,
        notice,
        form,
        layer,
        target,
        pin,
        method,
        options,
        explain,
        stop,
        link,
        link_field,
        address,
    )


def wire(panel: Panel) -> None:
    """Connect the events that only affect the column."""
    panel.stop.click(stop, queue=False, api_visibility="private", show_progress="hidden")
    panel.link.click(None, None, panel.link_field, js=links.script("copyLink"), api_visibility="private")
    # Registered before the server events, because Gradio starts the second handler of an event after the first ends.
    at_once: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", "show_progress": "hidden"}
    changed = [panel.pin.input, panel.bands.select, panel.explain.click]
    gr.on(changed, None, panel.inputs[1:], js=links.script("recordChoice"), **at_once)
    panel.image.input(None, panel.image, js=links.script("recordImage"), **at_once)


def stop(request: gr.Request) -> None:
    """Stop the run of this user; its own handler shows the best map so far."""
    runs.stop(request.session_hash)


def update_bands(settings: Settings, request: Request, picker: Any, panel: Panel) -> dict[Any, Any]:
    """Update the band picker for the opened image, unless it is already up to date."""
    packed = view.bands(settings, request.bands)
    same = isinstance(picker, dict) and {**picker, "id": 0} == {**packed, "id": 0}
    return {} if same else {panel.bands: {**packed, "id": view.number()}}


def new_image(path: str | None, form: Any, picker: Any, pin: Any, panel: Panel) -> dict[Any, Any]:
    """Reset the example, class and bands for a new image, and preview it if the browser does not support its format."""
    updates: dict[Any, Any] = {panel.examples: {"chosen": None}, panel.bands: {"text": _text(picker)}}
    return updates | _reset_class(form, pin, panel) | preview(path, form, picker, panel)


def _reset_class(form: Any, pin: Any, panel: Panel) -> dict[Any, Any]:
    """Reset the class to the top prediction, unless it is pinned; sentences are kept."""
    loaded = _loaded(form)
    return {} if pin is True or (loaded and loaded.encodes_text) else {panel.target: ""}


def _loaded(form: Any) -> LoadedModel | None:
    """Return the model that the lists of the page show, or None if it is not in memory."""
    name = form.get("model") if isinstance(form, dict) else None
    return model_cache.load(name) if isinstance(name, str) and model_cache.has(name) else None


def preview(path: str | None, form: Any, picker: Any, panel: Panel) -> dict[Any, Any]:
    """Return a PNG preview of the selected bands if browsers do not support the file, or no update."""
    loaded = _loaded(form)
    channels = loaded.model.channels if loaded else None
    with contextlib.suppress(Refused):  # the answer reports the error
        source = bands.original(uploads.inside_uploads(path)) if path else None
        shown = bands.preview(source, channels, _text(picker), pool.preview_image) if source else None
        return {panel.image: str(shown)} if shown else {}
    return {}


def _text(picker: Any) -> str:
    """Return the bands of the picker in the format of a `Request`."""
    text = picker.get("text") if isinstance(picker, dict) else None
    return text if isinstance(text, str) else ""


def apply_click(data: dict[str, Any], panel: Panel, form: Any, pin: Any = False) -> dict[Any, Any]:
    """Return the updates for a click on an example, a class, a stage or a remedy, or for a dropped image."""
    if "dropped" in data:
        return show_dropped(str(data["dropped"]), form, pin, panel)
    if "address" in data:
        return restore_address(data, panel, form)
    if "example" in data:
        chosen = examples.all_examples().get(str(data["example"]))
        if chosen is None:
            return {}
        marked = {"chosen": chosen.id, "shown": chosen.id}  # the script waits for the image
        return {panel.image: str(chosen.path), panel.examples: marked, **_reset_class(form, pin, panel)}
    names, _ = split(data.get("remedy", data))
    _, options = split(data.get("remedy"))
    changed: dict[Any, Any] = {panel.choices[name]: value for name, value in names.items()}
    if options:
        form = form if isinstance(form, dict) else {}
        changed[panel.options] = {**form, "values": {**(form.get("values") or {}), **options}}
    return changed


def show_dropped(path: str, form: Any, pin: Any, panel: Panel) -> dict[Any, Any]:
    """Show an image that was dropped or pasted on the page, after its upload."""
    with contextlib.suppress(Refused):
        path = str(uploads.inside_uploads(path))
        return {panel.image: path} | new_image(path, form, None, pin, panel)
    return {}


def restore_address(data: dict[str, Any], panel: Panel, form: Any) -> dict[Any, Any]:
    """Restore the settings of an entry in the browser history."""
    query, form = links.parse_query(data["address"]), form if isinstance(form, dict) else {}
    request, example, _ = links.read(query, data)
    shown = preview(request.image, form, {"text": request.bands}, panel) if example is None else {}
    return {
        panel.image: request.image,
        panel.examples: {"chosen": example.id if example else None},
        panel.pin: query.get("pin") == "1",
        panel.bands: {"text": request.bands},
        panel.options: {**form, "values": request.options},
        **{choice: getattr(request, name) for name, choice in panel.choices.items()},
        **shown,
    }


def update_settings(settings: Settings, request: Request, form: Any, panel: Panel) -> dict[Any, Any]:
    """Update the column to the settings of a request; only differences are sent.

    `form` is the value of the options component, which has the model, layer and method of the current lists.
    """
    form = form if isinstance(form, dict) else {}
    loaded, names = settings.loaded, settings.names
    listed = {name: names[name] for name in ("model", "layer", "method")}
    updates: dict[Any, Any] = {}
    if form.get("model") != loaded.name:
        updates |= update_models(panel, loaded)
        updates[panel.preprocessing] = preprocessing.pack(loaded)
        updates[panel.crop] = preprocessing.crop(loaded)
        updates[panel.layer] = update_choice(layers(loaded), value=names["layer"])
        first = object_messages.STRONGEST.get(loaded.model.task, messages.TOP_CHOICE)
        choices: list[str | tuple[str, str]] = [(first, "")]
        choices += [names["target"]] * bool(names["target"]) if loaded.detects_objects else loaded.names
        label = object_messages.OBJECTS[loaded.model.task][1] if loaded.detects_objects else messages.CLASS_LABEL
        shown: dict[str, Any] = {"value": request.target if settings.refusal else names["target"], "title": label}
        updates[panel.target] = update_choice(choices, **shown, sentences=loaded.encodes_text)
    else:
        for name in ("layer",) if settings.refusal else ("layer", "target"):  # the user corrects the refused sentence
            if getattr(request, name) != names[name]:
                updates[panel.choices[name]] = gr.update(value=names[name])
    if settings.unit and not loaded.encodes_text:  # no list of classes has it
        choices = [(messages.TOP_CHOICE, ""), names["target"], *loaded.names]
        updates[panel.target] = update_choice(choices, value=names["target"], title=messages.CLASS_LABEL)
    if form.get("model") != loaded.name:
        updates[panel.method] = methods.update(settings)
    elif request.method != names["method"]:
        updates[panel.method] = names["method"]
    options = {**listed, "schema": view.schema(settings), "values": settings.options}
    if options != form:
        updates[panel.options] = options
    return updates


def update_layers(loaded: LoadedModel, panel: Panel) -> dict[Any, Any]:
    """Add the receptive fields to the list of layers once per model; this can take a second."""
    if loaded.fields:
        return {}
    network.measure_stages(loaded)
    return {panel.layer: update_choice(layers(loaded))} if loaded.fields else {}


def update_objects(step: Scene, request: Request, panel: Panel) -> dict[Any, Any]:
    """Update the choices to the detected objects."""
    first = object_messages.STRONGEST[step.settings.loaded.model.task]
    value = step.chosen.name if step.chosen and request.target else ""
    return {panel.target: update_choice([(first, ""), *(item.name for item in step.objects)], value=value)}


def update_models(panel: Panel, chosen: LoadedModel | None = None) -> dict[Any, Any]:
    """Update the list of models, with the error of loading the first one, if any, and select a model."""
    infos = model_cache.list_models()
    networks = {info.name for info in infos}
    # The list shows only a hundred names at first, so alternative weights come after all networks.
    infos.sort(key=lambda info: info.name.partition(":")[0] in networks - {info.name})
    listed = models(infos)
    if chosen and chosen.name not in {info.name for info in infos}:  # with other settings, which no list has
        listed.insert(0, (chosen.title, chosen.name, [chosen.title]))
    error = model_cache.loading_error()
    selected = {"value": chosen.name} if chosen else {}
    return {
        panel.model: update_choice(listed, **selected),
        panel.notice: {"items": [{"sentence": error}] if error else []},
    }


def models(infos: Iterable[zoo.ModelInfo]) -> list[tuple[str, str, list[str]]]:
    """Return the choices of models; those that are neither on the disk nor can be downloaded come last."""
    ordered = sorted(infos, key=lambda info: info.offline)
    return [(messages.model_choice(info), info.name, list_columns.model_columns(info)) for info in ordered]


def layers(loaded: LoadedModel) -> list[tuple[str, str, list[str]]]:
    """Return the choices of layers: the stages, last first, then all other layers in call order."""
    stages = [layer for layer in loaded.layers if layer.stage or layer.name == loaded.default]
    rest = [layer for layer in loaded.layers if layer not in stages]
    ordered = [*reversed(stages), *rest]
    return [(messages.layer_choice(layer), layer.name, list_columns.layer_columns(layer, loaded)) for layer in ordered]
