"""The API endpoints. Their answers are in `saliscope/page/api/answers.py`, which needs torch.

Gradio does not check types or paths of arguments, so the answers do. The client raises errors with a one-line message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

import gradio
import gradio as gr
from gradio.data_classes import FileData

from saliscope.compute.jobs import visitors
from saliscope.page import proxy
from saliscope.page.serving import arguments


def build() -> None:
    """Register the endpoints; must be called inside `gr.Blocks`."""
    for function in (explain, feature_maps, list_models, list_layers, list_methods):
        arguments.register(function)
        name = function.__name__
        gradio.events.api(_for_visitor(function), api_name=name, concurrency_id="model", concurrency_limit=None)


def _for_visitor(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run the jobs of an endpoint for the visitor of the request; convert any error to a one-line `gr.Error`."""

    @wraps(function)
    def wrapper(request: gr.Request, *values: Any, **keywords: Any) -> Any:
        visitors.current.set(getattr(request.state, "visitor", None))
        try:
            return function(*values, **keywords)
        except Exception as error:
            raise gr.Error(proxy.answers().message_of(error), print_exception=False) from None

    hints = {"request": gr.Request, **get_type_hints(function)}
    signature = inspect.signature(function)
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    added = signature.replace(parameters=[first, *signature.parameters.values()])
    setattr(wrapper, "__signature__", added)  # noqa: B010 mypy refuses a plain assignment
    wrapper.__annotations__ = hints
    return wrapper


def explain(
    image: FileData,
    model: str = "",
    method: str = "",
    layer: str = "",
    target: str = "",
    options: dict[str, Any] | None = None,
    bands: str = "",
) -> dict[str, Any]:
    """Explain one image: the map as .npy, the overlay as PNG, predictions, statistics, findings and the verdict.

    image: the uploaded image. model, method, layer: names as on the page, empty for the default. target: a class name
    or index, empty for the top prediction. options: the options of the method by name; unknown options are refused.
    For methods that return several planes, the map has all of them, [planes, height, width], and the overlay shows the
    plane with the largest norm. For a detector or a segmentation network, the predictions are the detected objects,
    with boxes as fractions of the overlay; target is the name of one of them ("dog", "dog#2"), empty for the first, and
    options may contain min_score for a detector. If nothing is detected, map and overlay are null and a finding
    explains why. For a model with a text encoder, target is a sentence ("a photo of a dog"), or two separated by " | "
    to explain the difference of their cosine similarities. bands: the bands to show as red, green and blue for a TIFF
    or NPY image with more than three bands, such as "3,2,1".
    """
    found: Any = proxy.answers().explain(image, model, method, layer, target, options, bands)
    return found


def feature_maps(
    image: FileData,
    model: str = "",
    layer: str = "",
    channels: list[int] | None = None,
    sort: str = "activation",
    bands: str = "",
) -> dict[str, Any]:
    """Return the output of a layer for one image as .npy, [channels, height, width], with mean and effect per channel.

    channels: channel numbers in the order of the result, empty for all. sort: "activation", "effect" (on the top
    class) or "number". bands: as for `explain`.
    """
    found: Any = proxy.answers().feature_maps(image, model, layer, channels, sort, bands)
    return found


def list_models() -> list[dict[str, Any]]:
    """List all models: name, title, classes, size, whether it is downloaded, and top-1 accuracy."""
    found: Any = proxy.answers().list_models()
    return found


def list_layers(model: str = "") -> list[dict[str, Any]]:
    """List the layers of a model with a spatial output, in call order."""
    found: Any = proxy.answers().list_layers(model)
    return found


def list_methods(model: str = "", layer: str = "") -> list[dict[str, Any]]:
    """List the methods that support a model at a layer, with their options."""
    found: Any = proxy.answers().list_methods(model, layer)
    return found
