"""Labels and messages of the page. Each feature folder has its own; those of uploads are in saliscope/images."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from saliscope.compute.text_messages import quoted, similarity
from saliscope.names import did_you_mean
from saliscope.percentages import percent
from saliscope.zoo.names import split_name

if TYPE_CHECKING:
    import torch

    from saliscope import zoo
    from saliscope.compute.answers import Answer, LoadedModel, Refining, Settings

TITLE = "Saliscope"
TAGLINE = "Visualize what an image model looks at, layer by layer."
SKIP = "Skip to the result"
PREVIEW_ALT = "A Grad-CAM map of a German shepherd, with the predictions next to it"

MODEL_LABEL, LAYER_LABEL, CLASS_LABEL, METHOD_LABEL = "Model", "Layer", "Class", "Method"
OPTIONS = "Options"
OVERLAY, API = "Explain", "API"
LAYER, CLASS, METHOD, EXAMPLE = "layer", "class", "method", "example"
PIN = "Keep this class for other images"
PIN_LOST = "This model has no class {name}, so the page follows the top prediction again."
TOP, TOP_CHOICE = "the top prediction", "Top prediction"
LINK = {
    "drop": "Drop the image to explain it",
    "copied": "Link copied.",
    "copy": "Copy this link:",
    "without_image": "It does not include your own image.",
    "field": "Link to these settings",
}
"""Labels used by page.js, shared/address.js and panel/actions.js."""
COMPUTING = "Computing …"
STATUS = {"progress": "Progress", "computing": COMPUTING}
ERASE = {
    "label": "Cover this region",
    "title": "Cover the 20% of the image with the highest values, and see what changes",
    "edit": "top.200",
}
"""The button that opens the erase view, with its edit."""
"""Labels used by page/shared/status.js and line.js."""
FOLDED = "Image and settings"

PAGE_LOADING = "Loading the page …"
SOON = "The map appears here in a moment."
EMPTY_OVERLAY = "Choose an image or an example."
HINT = "Hover to read values."
UPLOAD_A_FILE = "The image must be an uploaded file. Upload it first."
NO_EXAMPLE = "This example does not exist, so there is no second image. Choose another one."
NO_IMAGE = "No image selected. Choose an image or an example."
STOPPED_WAITING = "Stopped while the network was loading. Start again to continue."
STOPPED_BEFORE = "Stopped before it started. Start again to continue."
STOPS_AFTER_LOADING = "Stops as soon as the network is loaded."
STOPPED_LOADING = "Download stopped. Choose the model again to resume it."
FULL_DISK = "The disk of the server is full. Try again in a few minutes."
OUT_OF_MEMORY = "Out of memory. Choose a smaller model or fewer samples."
UNKNOWN_TO_A_PROGRAM = "Internal error. See the server log for details. Repeating the call may work."
UNKNOWN = "Internal error. See the server log for details. Press Explain to try again."

LONGEST = 300  # characters of a message from the library
AVAILABLE = 8  # names in a message
DEFAULT_USED = " Using the default instead: "


def plain(message: str) -> str:
    """Return a message of the library on one line, truncated to `LONGEST` characters."""
    return short(message, LONGEST)


def short(name: str, longest: int = 60) -> str:
    """Return a user-provided name, truncated to fit on a line."""
    name = " ".join(str(name).split())
    return name if len(name) <= longest else name[: longest - 1] + "…"


def capitalize(name: str) -> str:
    """Return a name for the start of a sentence; `str.capitalize` would change "German shepherd"."""
    return name[:1].upper() + name[1:]


CONNECTING = "Connecting…"
"""The status of the stored answer until the server answers."""


def loading(seconds: float) -> str:
    """Return the status while the first model is loaded."""
    return f"Loading the network… {seconds:.0f} s"


def not_loaded(error: BaseException) -> str:
    """Return the message for a failure to load the first model."""
    return f"The network could not be loaded ({type(error).__name__}). See the server log for details."


def fetching(name: str, done: int, total: int) -> str:
    """Return the status while a model is downloaded or loaded from disk."""
    if not done:
        base, changes = split_name(name)
        return f"Loading {base} ({changed_settings(changes)})…" if changes else f"Loading {name}…"
    of = f" of {total / 1e6:.0f}" if total else ""
    return f"Downloading {name}: {done / 1e6:.0f}{of} MB"


def not_found(kind: str, name: str, near: list[str], default: str, reason: str = "") -> str:
    """Return the message for an unknown name in a link or an API call, with the reason if it is known."""
    hint = f" {did_you_mean(near)}".rstrip() or reason
    return f"Unknown {kind} “{short(name)}”.{hint}{DEFAULT_USED}{default}."


def available(names: list[str]) -> str:
    """Return the first names of a list as a hint for a name that resembles none of them."""
    return f" Available: {', '.join(names[:AVAILABLE])}{' and others' if len(names) > AVAILABLE else ''}."


def without_default(note: str) -> str:
    """Return a note without the part that names the default, for callers that refuse the request instead."""
    return note.split(DEFAULT_USED)[0]


def no_plane(number: int, count: int) -> str:
    """Return the message for a plane that does not exist."""
    return f"Unknown plane {number}. Choose a plane from 0 to {count - 1}."


ALL_COMPONENTS = {
    "all": "All",
    "all_alt": "All components over the image, each in its color",
    "all_note": "All components in their colors, each relative to its own maximum. Choose one to read and save it.",
}
"""Labels of the image of all components of a factorization."""
COLORS = 10  # number of class colors, see page/drawing/objects.js


def planes(step: Answer) -> dict[str, Any]:
    """Return the labels of the pager below a map with several planes. Channels and heads are numbered from 0."""
    word, first = {"feature_maps": ("Channel", 0), "attention_heads": ("Head", 0)}.get(
        step.settings.method.name, ("Component", 1)
    )
    words = {"word": word, "first": first, "count": f"of {step.planes}", "previous": "Previous", "next": "Next"}
    is_factorization = step.settings.method.name == "deep_feature_factorization"
    return words | (ALL_COMPONENTS if is_factorization and step.planes <= COLORS else {})


LOADING = "loading"
"""The state of a model that was chosen and cannot answer yet."""
NOT_DOWNLOADED = "not downloaded (offline)"
"""The state of a model whose weights are missing on a server without downloads."""


def model_choice(info: zoo.ModelInfo) -> str:
    """Return the label of a model: title, task (unless classification), accuracy and download size."""
    task = "" if info.task == "classification" else f" · {info.task}"
    accuracy = f" · {info.accuracy:.1f}% {info.measure}" if info.accuracy else ""
    size = f"{info.megabytes:.0f} MB " if info.megabytes else ""
    missing = NOT_DOWNLOADED if info.offline else f"{size}to download" if info.fetched else "not installed"
    return f"{info.title}{task}{accuracy} · {'ready' if info.cached else missing}"


def other_model(why: str, title: str) -> str:
    """Return the message for a link to a model that cannot be used."""
    return f"The model of this link is not available. {why} {title} is used instead. Choose another under Model."


def former_model(why: str, title: str) -> str:
    """Return the message for a model that cannot be loaded, while the page shows the answer of another one."""
    return f"{why} {title} is still selected."


def choose_listed(reason: str) -> str:
    """Return the message for an unknown model."""
    return f"{reason} Choose one from the list of models."


def not_on_server(title: str, others: list[str]) -> str:
    """Return the message for a model that an offline server does not have."""
    names = f"{', '.join(others[:AVAILABLE])}{' and others' if len(others) > AVAILABLE else ''}"
    choice = f"Choose a model that it has: {names}." if others else "It has no other model either."
    return f"{title} is not on this server, which does not download models. {choice}"


def use_model(title: str) -> str:
    """Return the label of the button that keeps the model that is used instead."""
    return f"Use {title}"


def changed_settings(text: str) -> str:
    """Return the changed settings of a model as part of its title: "size 96x64, score sigmoid"."""
    return text.replace("&", ", ").replace("=", " ")


def layer_choice(layer: Any) -> str:
    """Return the label of a layer."""
    height, width = layer.grid
    size = layer_size(height, width, layer.shape[layer.channel_axis])
    return f"{layer.name} · {size}{' · stage' if layer.stage else ''}"


def layer_size(height: int, width: int, channels: int) -> str:
    """Return the size of the output of a layer."""
    return f"{height} × {width}, {channels} channel{'s' * (channels != 1)}"


def subject(step: Answer | Refining) -> str:
    """Return the explained target in words."""
    given = step.settings.sentences
    return quoted(given) if given else step.name or TOP


def unit(settings: Settings) -> str:
    """Return the unit of the values of the map. The target of a detector is a score, not a logit."""
    return settings.method.unit.replace("logit", settings.measure)


def overlay(step: Answer | Refining, plane: torch.Tensor) -> dict[str, str]:
    """Return the alternative text, the unit and the hint of the overlay."""
    settings = step.settings
    layer = f" at layer {settings.layer}" if settings.method.takes_layer else ""
    target = f" for {subject(step)}" if settings.method.reads_class else ""
    alt = f"{settings.method.title}{layer}{target}; {_strongest(plane)}."
    return {"alt": alt, "unit": unit(settings), "hint": HINT}


def _strongest(plane: torch.Tensor) -> str:
    row, column = divmod(int(plane.nan_to_num(float("-inf")).argmax()), plane.shape[1])
    return f"maximum at row {row + 1} of {plane.shape[0]}, column {column + 1} of {plane.shape[1]}"


def file_name(step: Answer | Refining) -> str:
    """Return the file name of a saved map without its extension."""
    settings = step.settings
    parts = [settings.loaded.name, settings.method.name]
    if settings.method.takes_layer:
        parts.append(settings.layer)
    if settings.method.reads_class:
        parts.append(step.name or "top")
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part).strip("_") for part in parts)[:120]


NO_GRID = "No layer of this network has cells with positions, as the layers of a convolutional network have."
COMPARES_CLASSES = (
    "It compares the scores of several classes for a whole image, but a detection or a region only has one score."
)


def status(
    kind: str, *parts: str | dict[str, Any], ident: int | None = None, fraction: float | None = None
) -> dict[str, Any]:
    """Return a status line; `kind` is "idle", "busy", "done", "stopped" or "error".

    Without `ident`, scripts use the ID of the message.
    """
    line = {"kind": kind, "fraction": fraction, "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}
    return line if ident is None else {"id": ident, **line}


def code(text: str) -> dict[str, Any]:
    """Return a part of the status line in monospace."""
    return {"text": text, "mono": True}


def strong(text: str) -> dict[str, Any]:
    """Return a part of the status line in bold."""
    return {"text": text, "strong": True}


def waiting(seconds: float, ahead: int, other_user: bool) -> str:
    """Return the status of a job in the queue, with its place and the estimated waiting time."""
    if ahead > 1:
        return f"{in_line(ahead)}, about {max(1, round(seconds))} s"
    return f"Waiting for {'another user’s run' if other_user else 'your other run'}, about {max(1, round(seconds))} s"


def in_line(ahead: int) -> str:
    """Return the status of a job with others ahead of it."""
    return f"Waiting, {ahead} run{'s' * (ahead != 1)} ahead"


def refining(step: Refining, ident: int) -> dict[str, Any]:
    """Return the status of a long method: progress, elapsed time, and the remaining time or the effect of the limit."""
    text = f"{step.settings.method.title}: {100 * step.fraction:.0f}%, {step.seconds:.0f} s"
    if step.fraction > 0.02 and step.seconds >= 1:
        rest = step.seconds * (1 - step.fraction) / step.fraction
        done = step.fraction * (1 + step.left / step.seconds)
        if rest > step.left + 1:
            text += f", stops at about {100 * done:.0f}% in {step.left:.0f} s because of the time limit"
        elif rest >= 1:
            text += f", about {rest:.0f} s left"
    return status("busy", text, ident=ident, fraction=step.fraction)


def class_score(value: float, loaded: LoadedModel) -> str:
    """Return a probability as a percentage, or a score as a number if the network does not give probabilities."""
    if not (loaded.has_probabilities or loaded.detects_objects):
        return similarity([value]) if loaded.encodes_text else f"score {value:.3g}"
    return percent(value)


def confidence(step: Answer | Refining) -> str:
    """Return the score of the explained target, of both sentences, or the fraction of the pixels of a region."""
    if step.settings.sentences and step.probabilities is not None:
        return similarity(step.probabilities.tolist())
    part = " of the pixels" if step.settings.loaded.model.task == "segmentation" else ""
    return class_score(step.confidence, step.settings.loaded) + part


def answer_parts(step: Answer, score: bool = True) -> list[str | dict[str, Any]]:
    """Return the description of a map: method, class, its score (unless `score` is False), plane, layer, model."""
    settings = step.settings
    parts: list[str | dict[str, Any]] = [settings.method.title]
    if settings.method.reads_class:
        parts += [" for ", strong(subject(step))]
        parts.append(f" ({confidence(step)})" if score and not settings.unit else "")
    if step.planes:
        pager = planes(step)
        parts.append(f", {pager['word'].lower()} {step.plane + pager['first']} {pager['count']},")
    if settings.method.takes_layer:
        parts += [" at ", code(settings.layer)]
    control = settings.method.family == "control"
    return [*parts, ", a control that does not use the network" if control else f" of {settings.loaded.title}"]


def answered(step: Answer, ident: int, score: bool = True) -> dict[str, Any]:
    """Return the status of a finished map: its description, the run time, and why it stopped early, if it did."""
    seconds = step.explanation.seconds
    time = f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    parts = [*answer_parts(step, score), f" · {time} on {step.explanation.device}"]
    if step.share < 1:
        why = "stopped" if step.by_user else "out of time"
        return status("stopped", *parts, f" · {why} at {100 * step.share:.0f}%", ident=ident)
    return status("done", *parts, ident=ident)


def compare_with(name: str) -> str:
    """Return the label of the button that compares the map with that of another class."""
    return f"Compare with {short(name, 30)}"


def explain_with(title: str, target: str = CLASS) -> str:
    """Return the label of the button that explains the class or the sentence with another method."""
    return f"Explain the {target} with {title}"


def folded(step: Answer) -> str:
    """Return the settings on one line."""
    settings = step.settings
    subject = [step.name] if settings.method.reads_class else []
    return " · ".join([*subject, *([settings.layer] if settings.method.takes_layer else []), settings.method.title])


def landed(stored: dict[str, Any], waiting: str, ident: int) -> dict[str, Any]:
    """Return the status of the stored answer while the network is loading."""
    line = status("landing", *stored["status"], f" · {waiting}", ident=ident)
    return line | {"headline": stored["headline"]}


def wrong_numbers(wrong: dict[str, Any]) -> str:
    """Return the message for invalid values in the fields of the options."""
    pairs = [(name.replace("_", " "), str(value)) for name, value in list(wrong.items())[:3]]
    fields = ", ".join(f"{short(name)} “{short(value)}”" for name, value in pairs)
    return f"Invalid options: {fields}. Correct them; the map shows the last valid values."


def served(address: str) -> str:
    """Return the line that is printed to the terminal."""
    return f"Saliscope is running at {address}  (press Ctrl+C to stop)"
