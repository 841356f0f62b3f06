"""Every sentence of the page; those of the gradient lab are in ui/lab/words.py, of uploads in ui/serving/."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    import models
    from ui.engine.messages import Answer, Found, Refining, Scene, Settings

TITLE = "Hooklens"
TAGLINE = "See what an image network looked at, layer by layer."
SKIP = "Skip to the result"

PICTURE, MODEL_LABEL, LAYER_LABEL, CLASS_LABEL, METHOD_LABEL = "Picture", "Model", "Layer", "Class", "Method"
OPTIONS, EXPLAIN, STOP, COPY_LINK = "Options", "Explain", "Stop", "Copy link"
OVERLAY, FEATURES, API = "Overlay", "Feature maps", "API"
LAYER, CLASS, METHOD, EXAMPLE = "layer", "class", "method", "example"
PIN = "Keep this class for other pictures"
TOP, TOP_CHOICE = "the top prediction", "Top prediction"
PICTURE_ALT = "The picture that is explained"
DROP = "Drop the picture to explain it"
FOLDED = "Picture and settings"
PLACEHOLDER = "Drop a picture here\nor click to choose one"
BANDS_TITLE = "Bands shown as red, green and blue"
NO_OPTIONS = "This method has no options."
BARS_TITLE = "Predictions"

SOON = "The map appears here in a moment."
EMPTY_OVERLAY = "Choose a picture or click an example."
HINT = "Point at the map, or use the arrow keys on it, to read values."
UPLOAD_A_FILE = "Upload the picture as a file."
CHOOSE_ONE = "Choose one name from the list."
NO_PICTURE = "There is no picture yet. Choose one or click an example."
STOPPED_WAITING = "Stopped while the network was loading. Press Explain to go on."
COMPUTING = "Computing …"
STOPPED_BEFORE = "Stopped before it began. Press Explain to go on."
STOPPED_LOADING = "Download stopped. What has arrived is kept; choose the model again to resume."
OUT_OF_MEMORY = "Out of memory. Choose a smaller model or fewer samples."
UNKNOWN_TO_A_PROGRAM = "Internal error; the server's log has details. The same call may work again."
UNKNOWN = "Internal error; the server's log has details. Press Explain to try again."

LONGEST = 300  # characters of a sentence of the library


def plain(sentence: str) -> str:
    """A sentence of the library in one line, cut to `LONGEST`."""
    sentence = " ".join(str(sentence).split())
    return sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 1] + "…"


def short(name: str, longest: int = 60) -> str:
    """A visitor's own word, cut to what a line holds."""
    name = " ".join(str(name).split())
    return name if len(name) <= longest else name[: longest - 1] + "…"


def loading(seconds: float) -> str:
    """While torch is imported."""
    return f"Loading the network… {seconds:.0f} s"


def not_loaded(error: BaseException) -> str:
    """When torch or the first model could not be loaded."""
    return f"The network could not be loaded ({type(error).__name__}). The server's log says why."


def fetching(name: str, done: int, total: int) -> str:
    """While a model is downloaded, or loaded from disk."""
    if not done:
        return f"Loading {name}…"
    of = f" of {total / 1e6:.0f}" if total else ""
    return f"Downloading {name}: {done / 1e6:.0f}{of} MB"


def not_found(kind: str, name: str, near: list[str], default: str) -> str:
    """When a link or a call has an unknown name."""
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"There is no {kind} called “{short(name)}” here.{hint} Shown instead: {default}."


def no_plane(number: int, count: int) -> str:
    """When a plane does not exist."""
    return f"There is no plane {number}; choose one from 0 to {count - 1}."


def planes(step: Answer) -> dict[str, Any]:
    """The pager below a map of several planes; channels and heads are counted from 0, as in code."""
    word, first = {"feature_maps": ("Channel", 0), "attention_heads": ("Head", 0)}.get(
        step.settings.method.name, ("Component", 1)
    )
    return {"word": word, "first": first, "count": f"of {step.planes}", "previous": "Previous", "next": "Next"}


def model_choice(info: models.ModelInfo) -> str:
    """A model in the list: title, task where it does not classify, accuracy, size of the download."""
    task = "" if info.task == "classification" else f" · {info.task}"
    accuracy = f" · {info.accuracy:.1f}% {info.measure}" if info.accuracy else ""
    size = f"{info.megabytes:.0f} MB " if info.megabytes else ""
    missing = f"{size}to download" if info.fetched else "not installed"
    return f"{info.title}{task}{accuracy} · {'ready' if info.cached else missing}"


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
        return f"Use layer {value}"
    if name == "method":
        return f"Use {str(value).replace('_', ' ')}"
    if name == "target":
        return "Use another target"
    if name == "relu":
        return "Show negative evidence too" if value is False else "Keep positive evidence only (ReLU)"
    return f"Set {name.replace('_', ' ')} to {value}"


def method_choice(method: Any) -> str:
    """A method in the list: its title, and its family unless that is CAM."""
    return method.title if method.family == "cam" else f"{method.title} · {method.family}"


def subject(step: Answer | Refining) -> str:
    """What is explained, in a sentence."""
    return step.name or TOP


def unit(settings: Settings) -> str:
    """The unit of the map's values: a detector's target is a score and no logit."""
    return settings.method.unit.replace("logit", measure(settings))


def measure(settings: Settings) -> str:
    """What the target is measured in."""
    if settings.unit:
        return "activation"
    return "score" if settings.loaded.model.task == "detection" else "logit"


def overlay(step: Answer | Refining, plane: torch.Tensor) -> dict[str, str]:
    """The overlay's alternative text, unit and hint."""
    settings = step.settings
    place = f" at layer {settings.layer}" if settings.takes_layer else ""
    whom = f" for {subject(step)}" if settings.method.reads_class else ""
    alt = f"{settings.method.title}{place}{whom}; {_strongest(plane)}."
    return {"alt": alt, "unit": unit(settings), "hint": HINT}


def _strongest(plane: torch.Tensor) -> str:
    row, column = divmod(int(plane.nan_to_num(float("-inf")).argmax()), plane.shape[1])
    return f"strongest at row {row + 1} of {plane.shape[0]}, column {column + 1} of {plane.shape[1]}"


def file_name(step: Answer | Refining) -> str:
    """The stem of a saved map's file name."""
    settings = step.settings
    parts = [settings.loaded.name, settings.method.name]
    if settings.takes_layer:
        parts.append(settings.layer)
    if settings.method.reads_class:
        parts.append(step.name or "top")
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part).strip("_") for part in parts)[:120]


def unsuitable(title: str, reason: str, default: str) -> str:
    """When a method was asked for that cannot explain the network."""
    why = " ".join(reason.split()).partition(". ")[0].rstrip(".")  # what follows is what a program writes instead
    return plain(f"{title} is not for this network: {why}.") + f" Shown instead: {default}."


COMPARES_CLASSES = (
    "It compares the scores of classes for a whole picture; a detection or a region has a score of its own alone."
)

# What networks for segmentation and detection find

ONLY_BACKGROUND = (
    "The network sees nothing but background in this picture: none of its classes has a pixel. Choose another picture, "
    "or the background itself."
)
AT_LOWER_SCORE = "With a lower min score the strongest detection is explained."


def other_layer(wanted: str, used: str) -> str:
    """When the default layer has no part in a detection."""
    return f"No path leads from layer {wanted} to this detection, which comes from another scale: the map is at {used}."


THINGS = {"detection": ("Objects found", "Object"), "segmentation": ("Regions found, by their share", "Region")}
"""The title of the list, and the label of the choice of a target."""
HIDE = {"detection": "Boxes", "segmentation": "Regions"}
"""The switch that hides them on the picture."""
STRONGEST = {"detection": "Strongest detection", "segmentation": "Largest region"}


def nothing_found(settings: Settings, strongest: list[Found]) -> str:
    """When no detection has the score that was asked for; `strongest` of all, where there is one."""
    found = f"; the strongest detection is {strongest[0].name} with {strongest[0].share:.2f}" if strongest else ""
    return (
        f"No object found with a score of at least {settings.min_score:g}{found}. Lower min score under Options, or "
        "choose another picture."
    )


def not_in_picture(settings: Settings, found: list[str], default: str) -> str:
    """When what was asked for is not among what was found."""
    floor = f" with a score of at least {settings.min_score:g}" if settings.loaded.model.task == "detection" else ""
    names = ", ".join(found[:6]) + (" and more" if len(found) > 6 else "")
    name = settings.names["target"]
    return f"There is no “{short(name)}” in this picture{floor}. Found: {names}. Shown instead: {default}."


def no_detections(output: Any) -> str:
    """When a network that is declared a detector gives something else."""
    return (
        f"The detector gave a {type(output).__name__}; it must give a list with one dictionary of boxes, labels and "
        "scores for each picture, as torchvision's do."
    )


def no_pixel_scores(output: Any) -> str:
    """When a network that is declared one for segmentation gives something else."""
    return (
        f"The segmentation network gave a {type(output).__name__} without scores [N, classes, height, width], as a "
        'tensor, as {"out": scores} or as its logits.'
    )


def nothing(step: Scene, ident: int) -> dict[str, Any]:
    """The status line where nothing is explained."""
    return status("done", step.sentence, ident=ident)


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
    """A part of the line in bold."""
    return {"text": text, "strong": True}


def asked(ident: int) -> dict[str, Any]:
    """At once after a click: the old result is marked as such; the words come only where the answer takes a while."""
    return status("busy", COMPUTING, ident=ident) | {"patient": True}


def waiting(seconds: float, stranger: bool) -> str:
    """Why nothing is computed yet, and for how long."""
    return f"Waiting for {'another visitor’s run' if stranger else 'your other run'}, about {max(1, round(seconds))} s"


def refining(step: Refining, ident: int) -> dict[str, Any]:
    """While a long method runs: fraction done, seconds, an estimate of the rest, and what the limit leaves undone."""
    text = f"{step.settings.method.title}: {100 * step.fraction:.0f}%, {step.seconds:.0f} s"
    if step.fraction > 0.02 and step.seconds >= 1:
        rest = step.seconds * (1 - step.fraction) / step.fraction
        done = step.fraction * (1 + step.left / step.seconds)
        if rest > step.left + 1:
            text += f", cannot finish: the time limit ends it in {step.left:.0f} s, at about {100 * done:.0f}%"
        elif rest >= 1:
            text += f", about {rest:.0f} s left"
    return status("busy", text, ident=ident, fraction=step.fraction)


def answer_parts(step: Answer) -> list[str | dict[str, Any]]:
    """What the map is: method, class, probability, plane, layer, model."""
    settings = step.settings
    parts: list[str | dict[str, Any]] = [settings.method.title]
    if settings.method.reads_class:
        parts += [" for ", strong(subject(step))]
        share = f"{100 * step.confidence:.0f}%" if step.confidence >= 0.01 else "under 1%"
        part = "of the pixels" if settings.loaded.model.task == "segmentation" else ""
        parts.append("" if settings.unit else f" ({f'{share} {part}'.strip()})")
    if step.planes:
        pager = planes(step)
        parts.append(f", {pager['word'].lower()} {step.plane + pager['first']} {pager['count']},")
    if settings.takes_layer:
        parts += [" at ", code(settings.layer)]
    asked = settings.method.family != "control"
    return [*parts, f" of {settings.loaded.title}" if asked else ", a control: the network was not asked"]


def answered(step: Answer, ident: int) -> dict[str, Any]:
    """What the map is, the seconds, and why it was ended early where it was."""
    parts = [*answer_parts(step), f" · {_time(step.explanation.seconds)}"]
    if step.share < 1:
        why = "stopped" if step.by_visitor else "out of time"
        return status("stopped", *parts, f" · {why} at {100 * step.share:.0f}%", ident=ident)
    return status("done", *parts, ident=ident)


def folded(step: Answer) -> str:
    """The settings in one row."""
    settings = step.settings
    subject = [step.name] if settings.method.reads_class else []
    return " · ".join([*subject, *([settings.layer] if settings.takes_layer else []), settings.method.title])


def landed(parts: list[Any], waiting: str, ident: int) -> dict[str, Any]:
    """What the stored answer is, while the network is loading."""
    return status("landing", *parts, f" · {waiting}", ident=ident)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def wrong_numbers(wrong: dict[str, Any]) -> str:
    """When fields of the options hold what cannot be."""
    named = [(name.replace("_", " "), str(value)) for name, value in list(wrong.items())[:3]]
    fields = ", ".join(f"{short(name)} “{short(value)}”" for name, value in named)
    return f"Correct {fields} in the options; until then the map is that of the last valid numbers."


def served(address: str) -> str:
    """The line in the terminal."""
    return f"Hooklens is at {address}  (Ctrl+C ends it)"
