"""Texts of the tools for agents: descriptions, and error messages for invalid arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saliscope.compute.messages import short
from saliscope.names import IN_SHORT_LISTS, did_you_mean, nearest

INSTRUCTIONS = (
    "Saliscope shows what an image model looks at. Call explain with an image to get the map over the image, with the "
    "predictions, and feature_maps to see the channels of a layer. list_models, list_layers and list_methods return "
    "names for the other arguments; without arguments they are short, and filter and name give more."
)
"""What the server tells agents about itself."""

EXPLAIN = (
    "Show what an image model looks at. Returns the map over the image as an image, and the target, predictions, "
    "statistics of the map and findings (what to know before you trust the map)."
)
FEATURE_MAPS = (
    "Show channels of a layer for an image. Returns one image with a numbered tile per channel, each in its own range, "
    "and the mean, minimum and maximum of each channel."
)
LIST_MODELS = (
    "List model names by task: those that are ready, and those whose weights are downloaded at the first use. "
    "filter searches, name returns all properties of one model."
)
LIST_LAYERS = "List the layers of a model that have a grid, in call order: by default the last layer of each stage."
LIST_METHODS = (
    "List the methods that support a model, grouped by question, with one line each. filter searches, name returns "
    "one method with its options."
)

IMAGE = (
    "An example's name ({examples}), the image file as base64 or as a data URL, or the absolute path of an image file "
    "(only if the page runs on the same machine, for this machine only)."
)
MODEL = "A name from list_models, empty for the default."
METHOD = "A name from list_methods, empty for the default."
LAYER = "A name from list_layers, empty for the default."
TARGET = (
    "What to explain: a class by name or index, empty for the top prediction. For a detector or a segmentation "
    "network: an object of the predictions, such as “dog” or “dog#2”. For a network with a text encoder: a sentence. "
    "A channel: “channel 12 of head”."
)
OPTIONS = "Options of the method by name, see list_methods with name. For a detector also min_score, from 0.01 to 1."
BANDS = "For images with more than three bands: those shown as red, green and blue, such as “3,2,1”."
CHANNELS = "Numbers of the channels to show, at most {most}; empty for the first ones in the order of sort."
COUNT = "How many channels to show if channels is empty, from 1 to {most}."
SORT = "The order: activation (mean), effect (on the score of the top class, slow) or number."
FILTER = "Words that must all occur in the name or the description."
FILTER_LAYERS = "A text in the name or kind of the layers to list, such as “stages.2” or “Conv2d”."
ONE_MODEL = "The model whose properties to return."
ONE_METHOD = "The method whose options and properties to return."

NO_LINKS = "Links are not supported. Download the image and pass it as base64, or upload it on the page."
NO_BASE64 = "image is not valid base64. Pass the whole image file as base64, of at most {most} MB."
NO_PATHS = (
    "The path was not read, because this page does not run for your machine only. Pass an example's name ({examples}) "
    "or the image file as base64."
)
RELATIVE = "The path “{path}” is not absolute. Pass the full path of the image file, for example {example}."
NO_SUFFIX = "The path “{path}” is not the name of an image. It must end in {suffixes}."
NO_FILE = "The file “{path}” does not exist, or cannot be read. Check the path, or pass the image as base64."
NO_IMAGE_FILE = "The file “{path}” is not an image of a supported format. Save the image as JPEG or PNG first."


def unknown_image(text: str, examples: Iterable[str]) -> str:
    """Return the message for a text that is neither an example, a path nor base64."""
    known = list(examples)
    found = f"Unknown image “{short(text)}”. " if text else "image is empty. "
    return (
        f"{found}{did_you_mean(nearest(text, known))}Pass an example's name ({', '.join(known)}), "
        "an absolute path, or the image file as base64."
    )


def unknown_tool(name: str, known: Iterable[str]) -> str:
    """Return the message for a tool that does not exist."""
    return f"Unknown tool “{short(name)}”. {_choices(name, known)}"


def unknown_argument(tool: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an argument that a tool does not have."""
    return f"{tool} has no argument “{short(name)}”. {_choices(name, known)}"


def missing_argument(tool: str, name: str, meaning: str) -> str:
    """Return the message for a missing argument, with its description."""
    return f"{tool} needs {name}: {meaning[:1].lower()}{meaning[1:]}"


def wrong_type(name: str, wanted: str, value: Any) -> str:
    """Return the message for an argument of another type."""
    return f"{name} must be {wanted}, got {short(repr(value))}."


def wrong_count(most: int, value: int) -> str:
    """Return the message for a number of channels that one image cannot show."""
    return f"One call shows from 1 to {most} channels, got {value}. Use several calls."


def unknown_model(name: str, known: Iterable[str]) -> str:
    """Return the message for a model that is not offered."""
    hint = did_you_mean(nearest(name, known))
    return f"Unknown model “{short(name)}”. {hint}Call list_models without arguments for the names."


def no_match(kind: str, text: str, known: Iterable[str]) -> str:
    """Return the message for a filter that finds nothing."""
    return f"No {kind} matches “{short(text)}”. {did_you_mean(nearest(text, known))}Use fewer words, or omit filter."


def _choices(name: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{did_you_mean(nearest(name, names, 1, IN_SHORT_LISTS))}Available: {', '.join(names)}."
