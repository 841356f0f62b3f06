"""Every sentence that the page says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    import models
    from ui.engine.messages import Answer, Channel, Channels, Settings

TITLE = "Hooklens"
TAGLINE = "See what an image network looked at, layer by layer."
SKIP = "Skip to the result"

PICTURE, MODEL_LABEL, LAYER_LABEL, CLASS_LABEL, METHOD_LABEL = "Picture", "Model", "Layer", "Class", "Method"
OPTIONS, EXPLAIN, STOP, COPY_LINK = "Options", "Explain", "Stop", "Copy link"
OVERLAY, FEATURES, API = "Overlay", "Feature maps", "API"
LAYER, CLASS, METHOD, EXAMPLE, TOP, TOP_CHOICE = (
    "layer",
    "class",
    "method",
    "example",
    "the top prediction",
    "Top prediction",
)
PICTURE_ALT = "The picture that is explained"
PLACEHOLDER = "Drop a picture here\nor click to choose one"
NO_OPTIONS = "This method has no options."
STRIP_TITLE = "Grad-CAM at every stage: choose one to look closer"
BARS_TITLE = "Predictions"
SORT = "Sort by"
SORTS = [("Mean activation", "activation"), ("Effect on the class", "effect"), ("Channel number", "number")]
MEASURE = {"activation": "mean activation", "effect": "effect", "number": "mean activation"}

EMPTY_OVERLAY = "Choose a picture or click an example."
EMPTY_GRID = "The layer's channels appear here once a picture is explained."
EMPTY_CHANNEL = "Choose a channel to see it large."
HINT = "Point at the map, or use the arrow keys on it, to read values."
UPLOAD_A_FILE = "Upload the picture as a file."
CHOOSE_ONE = "Choose one name from the list."
NO_PICTURE = "There is no picture yet. Choose one or click an example."
NO_LINKS = "Links are not accepted. Upload the picture instead."
STOPPED_WAITING = "Stopped while the network was loading. Press Explain to go on."
STOPPED_LOADING = (
    "Stopped while the model was being fetched. What has arrived is kept; choose the model again to go on."
)
EFFECTS = "Measuring what each channel contributes"
EFFECTS_STOPPED = "Stopped before every channel was measured. Sort by mean activation, or try an earlier page again."
OUT_OF_MEMORY = "This did not fit into the server's memory. Choose a smaller model or fewer samples."
UNKNOWN_TO_A_PROGRAM = "Something went wrong on the server; its log says what. The same call may work again."
UNKNOWN = "Something went wrong on the server. Nothing of yours is lost: press Explain to try again."
READY = "Ready."

LONGEST = 300


def plain(sentence: str) -> str:
    """A sentence of the library as the page says it: without paths to the code, and of a sane length."""
    sentence = " ".join(str(sentence).split())
    return sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 1] + "…"


def short(name: str, longest: int = 60) -> str:
    """A name that a visitor gave, cut to what a line holds."""
    name = " ".join(str(name).split())
    return name if len(name) <= longest else name[: longest - 1] + "…"


def loading(seconds: float) -> str:
    """While torch is imported."""
    return f"Loading the network… {seconds:.0f} s"


def not_loaded(error: BaseException) -> str:
    """When torch or the first model could not be loaded."""
    return f"The network could not be loaded ({type(error).__name__}). The server's log says why."


def fetching(name: str, done: int, total: int) -> str:
    """While a model is fetched."""
    if not done:
        return f"Loading {name}…"
    return (
        f"Fetching {name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        if total
        else f"Fetching {name}: {done / 1e6:.0f} MB"
    )


def not_found(kind: str, name: str, near: list[str], default: str) -> str:
    """When a link or a call names something that is not there."""
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"There is no {kind} called “{short(name)}” here.{hint} Shown instead: {default}."


def no_channel(number: int, layer: str, count: int) -> str:
    """When a channel does not exist."""
    return f"Layer {layer} has no channel {number}; it has channels 0 to {count - 1}."


def no_plane(number: int, count: int) -> str:
    """When a plane does not exist."""
    return f"There is no plane {number}: the planes have the numbers 0 to {count - 1}."


def planes(step: Answer) -> dict[str, Any]:
    """What the pager under a map of several planes says; channels and heads are counted from 0, as in code."""
    word, first = {"feature_maps": ("Channel", 0), "attention_heads": ("Head", 0)}.get(
        step.settings.method.name, ("Component", 1)
    )
    return {"word": word, "first": first, "count": f"of {step.planes}", "previous": "Previous", "next": "Next"}


def model_choice(info: models.ModelInfo) -> str:
    """A model in the list: what it is, how good, and what fetching it costs."""
    accuracy = f" · {info.accuracy:.1f}% top-1" if info.accuracy else ""
    missing = f"{info.megabytes:.0f} MB to fetch" if info.fetched else "not installed"
    return f"{info.title}{accuracy} · {'ready' if info.cached else missing}"


def layer_choice(layer: Any) -> str:
    """A layer in the list."""
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    height, width = layer.grid
    count = layer.shape[channel_axis(layer.layout)]
    return f"{layer.name} · {height} × {width} · {count} channels{' · stage' if layer.stage else ''}"


def remedy(changes: dict[str, Any]) -> str:
    """A remedy's button."""
    name, value = next(iter(changes.items()))
    if name == "layer":
        return f"Look at {value}"
    if name == "method":
        return f"Use {str(value).replace('_', ' ')}"
    if name == "target":
        return "Use another target"
    if name == "relu":
        return "Show negative values too" if value is False else "Keep positive values only"
    return f"Set {name.replace('_', ' ')} to {value}"


def unit(settings: Settings) -> str:
    """What a map's values are measured in; empty where they are shares or ranks."""
    return settings.method.unit


def method_choice(method: Any) -> str:
    """A method in the list: its name, and where that does not tell, what kind it is."""
    return method.title if method.family == "cam" else f"{method.title} · {method.family}"


def class_name(settings: Settings, target: int | None) -> str:
    """The class as people say it."""
    return "the top prediction" if target is None else settings.loaded.names[target]


def overlay(settings: Settings, target: int | None, plane: torch.Tensor) -> dict[str, str]:
    """What the overlay's script says about a map."""
    place = f" at layer {settings.layer}" if settings.takes_layer else ""
    subject = f" for {class_name(settings, target)}" if settings.method.reads_class else ""
    alt = f"{settings.method.title}{place}{subject}; {_strongest(plane)}."
    return {"alt": alt, "unit": unit(settings), "hint": HINT}


def _strongest(plane: torch.Tensor) -> str:
    row, column = divmod(int(plane.nan_to_num(float("-inf")).argmax()), plane.shape[1])
    return f"strongest at row {row + 1} of {plane.shape[0]}, column {column + 1} of {plane.shape[1]}"


def file_name(settings: Settings, target: int | None) -> str:
    """The name of a downloaded file, without its ending."""
    parts = [settings.loaded.name, settings.method.name]
    if settings.takes_layer:
        parts.append(settings.layer)
    parts.append(class_name(settings, target) if target is not None else "top")
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part).strip("_") for part in parts)[:120]


def channel_file(step: Channel) -> str:
    """The name of a downloaded channel, without its ending."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"{step.settings.loaded.name}-{step.settings.layer}-channel-{step.number}")[
        :120
    ]


def channel(step: Channel) -> dict[str, Any]:
    """What the opened channel's script says."""
    plane, settings = step.map, step.settings
    row, column = divmod(int(plane.argmax()), plane.shape[1])
    facts = [
        ("Mean", f"{float(plane.mean()):.4g}"),
        ("Largest", f"{float(plane.max()):.4g} at row {row + 1}, column {column + 1}"),
        ("Smallest", f"{float(plane.min()):.4g}"),
        ("Cells at zero", f"{100 * float((plane == 0).float().mean()):.0f}%"),
    ]
    if step.effect is not None:
        facts.append((f"Effect on {class_name(settings, step.target)}", f"{step.effect:+.4g} logit"))
    alt = f"Channel {step.number} of layer {settings.layer}; {_strongest(plane)}."
    return {"title": f"Channel {step.number}", "alt": alt, "unit": "", "hint": HINT, "facts": facts}


def channels(step: Channels, sort: str) -> str:
    """The line above the grid."""
    settings = step.settings
    first = step.page * len(step.numbers) + 1 if step.pages == 1 else None
    shown = f"{step.total} channels" if first else f"{len(step.numbers)} of {step.total} channels"
    height, width = step.maps.shape[1:]
    how = {
        "activation": "the strongest on average first",
        "effect": f"first those without which {class_name(settings, step.target)} would lose most",
        "number": "in the network's order",
    }[sort]
    return f"{settings.layer}: {shown} of {height} × {width}, {how}. Each is coloured by its own range."


def status(kind: str, *parts: str | dict[str, Any], ident: int, fraction: float | None = None) -> dict[str, Any]:
    """The status line: `kind` is "idle", "busy", "done", "stopped" or "error"."""
    return {
        "id": ident,
        "kind": kind,
        "fraction": fraction,
        "parts": [{"text": p} if isinstance(p, str) else p for p in parts],
    }


def code(text: str) -> dict[str, Any]:
    """A part of the line in monospace."""
    return {"text": text, "mono": True}


def strong(text: str) -> dict[str, Any]:
    """A part of the line that stands out."""
    return {"text": text, "strong": True}


def refining(settings: Settings, fraction: float, seconds: float, ident: int) -> dict[str, Any]:
    """While a long method runs."""
    left = seconds * (1 - fraction) / fraction if fraction > 0.02 else None
    rest = f", about {left:.0f} s left" if left is not None and left >= 1 else ""
    text = f"{settings.method.title}: {100 * fraction:.0f}%, {seconds:.0f} s{rest}"
    return status("busy", text, ident=ident, fraction=fraction)


def answer_parts(step: Answer) -> list[str | dict[str, Any]]:
    """What is seen: method, class, confidence, layer, model."""
    settings = step.settings
    parts: list[str | dict[str, Any]] = [settings.method.title]
    if settings.method.reads_class:
        parts += [" for ", strong(class_name(settings, step.target))]
        parts.append(f" ({100 * step.confidence:.0f}%)" if step.confidence >= 0.01 else " (under 1%)")
    if step.planes:
        said = planes(step)
        parts.append(f", {said['word'].lower()} {step.plane + said['first']} {said['count']},")
    if settings.takes_layer:
        parts += [" at ", code(settings.layer)]
    return [*parts, f" of {settings.loaded.title}"]


def answered(step: Answer, ident: int) -> dict[str, Any]:
    """What is seen, and how long it took."""
    parts = [*answer_parts(step), f" · {_time(step.explanation.seconds)}"]
    if step.share < 1:
        why = "stopped" if step.by_visitor else "out of time"
        return status("stopped", *parts, f" · {why} at {100 * step.share:.0f}%", ident=ident)
    return status("done", *parts, ident=ident)


def landed(parts: list[Any], waiting: str, ident: int) -> dict[str, Any]:
    """What is seen first, kept with the project, while the network is loading."""
    return status("landing", *parts, f" · {waiting}", ident=ident)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# For programs

API_TEXT = (
    "Everything on this page can be asked by a program: `explain`, `feature_maps`, `list_models`, `list_layers` "
    "and `list_methods`. Empty arguments mean the default; a class is a name or an index. "
)
NO_OBJECT = 'options must be an object of option names and values, for example {"samples": 25}.'


def no_text(argument: str, value: Any, longest: int) -> str:
    """When a program sends something else where a name belongs."""
    found = f"one of {len(value)} characters" if isinstance(value, str) else short(type(value).__name__)
    return f"{argument} must be a text of at most {longest} characters, not {found}."


def no_sort(value: Any, sorts: tuple[str, ...]) -> str:
    """When a program sorts by something unknown."""
    return f"sort cannot be “{short(str(value))}”. Choose one of {', '.join(sorts)}."


def no_channels(layer: str, count: int) -> str:
    """When a program asks for channels that are not there."""
    return f"channels must be a list of whole numbers from 0 to {count - 1}: layer {layer} has {count} channels."


def snippets(settings: Settings) -> list[dict[str, str]]:
    """The settings on the page as calls from Python and a shell, and as a call of the library."""
    target = "" if settings.target is None else settings.loaded.names[settings.target]
    asked = {"model": settings.loaded.name, "method": settings.method.name}
    if settings.takes_layer:
        asked["layer"] = settings.layer
    if target:
        asked["target"] = target
    if settings.options:
        asked["options"] = settings.options
    named = "".join(f"    {name}={value!r},\n" for name, value in asked.items())
    python = (
        "from gradio_client import Client, handle_file\n\n"
        'client = Client("{origin}")\n'
        f'answer = client.predict(\n    image=handle_file("photo.jpg"),\n{named}    api_name="/explain",\n)\n'
        'print(answer["predictions"], answer["map"], answer["overlay"])'
    )
    layer = f", layer={settings.layer!r}" if settings.takes_layer else ""
    index = "" if settings.target is None else f", target={settings.target}"
    options = "".join(f", {name}={value!r}" for name, value in settings.options.items())
    library = (
        "import explainers\nfrom models import load_model\nfrom PIL import Image\n\n"
        f'model = load_model({settings.loaded.name!r})\nphoto = Image.open("photo.jpg")\n'
        "images = model.prepare(photo)\n"
        f"e = explainers.explain({settings.method.name!r}, model.network, images{index}{layer}{options})\n"
        'e.overlay(model.crop(photo))[0].save("overlay.png")'
    )
    shell = (
        "file=$(curl -s -F files=@photo.jpg {origin}gradio_api/upload | tr -d '[]\"')\n"
        "curl -s {origin}gradio_api/call/list_methods -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"data": ["{settings.loaded.name}", ""]}}\''
    )
    return [
        {
            "title": "Python",
            "text": "With gradio_client; the answer holds numbers and the names of two files.",
            "code": python,
        },
        {
            "title": "Library",
            "text": "The same without a server: explainers needs torch and nothing else.",
            "code": library,
        },
        {
            "title": "Shell",
            "text": "Two requests: the first names an event, GET on it gives the answer.",
            "code": shell,
        },
    ]


def served(address: str) -> str:
    """The line in the terminal."""
    return f"Hooklens is at {address}  (Ctrl+C ends it)"
