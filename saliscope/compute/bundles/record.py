"""What a saved map says about itself: its record with all parameters and the hashes of its inputs, and its caption."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import platform
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from saliscope import __version__
from saliscope.compute import messages, model_cache
from saliscope.compute.answers import Answer, LoadedModel
from saliscope.compute.text_messages import similarity
from saliscope.images.pixels import pixel_hash
from saliscope.percentages import percent

FORMAT, VERSION = "saliscope-bundle", 1
PACKAGES = ("torch", "torchvision", "pillow", "numpy")


def record(step: Answer, packed: dict[str, Any]) -> dict[str, Any]:
    """Return the question that reproduces an answer, and its description; `packed` is the map as sent to the page."""
    settings, edit = step.settings, step.settings.edit
    # The crop that the network sees, before an edit.
    seen = {"sha256": edit.unedited if edit else pixel_hash(step.crop), "size": list(step.crop.size)}
    options = {name: value for name, value in step.options.items() if isinstance(value, (bool, int, float, str))}
    question = {
        "model": settings.loaded.name,
        "layer": settings.layer,
        "class": step.name,
        "method": settings.method.name,
        "options": options,
        "bands": settings.bands.text if settings.bands else "",
        "plane": step.plane if step.planes else None,
        **({"edit": edit.text} if edit else {}),
    }
    answer = {
        "title": settings.method.title,
        "model": settings.loaded.title,
        "reads_class": settings.method.reads_class,
        "takes_layer": settings.method.takes_layer,
        "probability": None if settings.unit or not settings.loaded.has_probabilities else step.confidence,
        "subject": messages.subject(step),
        "similarities": step.probabilities.tolist() if settings.sentences and step.probabilities is not None else None,
        "unit": messages.unit(settings),
        "verdict": step.verdict.sentence,
        "share": step.share,
        "seconds": round(step.explanation.seconds, 3),
        "device": step.explanation.device,
    }
    return {
        "question": question,
        "answer": answer,
        "seed": options.get("seed"),
        "input": seen | ({"second_sha256": edit.second} if edit and edit.second else {}),
        "shape": [packed["h"], packed["w"]],
        "sha256": _map_hash(packed),
    }


def caption(record: dict[str, Any]) -> list[str]:
    """Return the caption of a saved figure: method, class, layer and model, then the options if there are any."""
    question, answer = record["question"], record["answer"]
    text, probability = answer["title"], answer["probability"]
    if answer["reads_class"]:
        values = "" if probability is None else f" ({percent(probability)})"
        if answer.get("similarities"):
            values = f" (cosine {similarity(answer['similarities'])})"
        text += f" for {answer.get('subject', question['class'])}{values}"
    if answer["takes_layer"]:
        text += f" at layer {question['layer']}"
    text += f" of {answer['model']}"
    if question["plane"] is not None:
        text += f", plane {question['plane']}"
    if question.get("edit"):
        text += ", after an edit of the image"
    if answer["share"] < 1:
        text += f", stopped at {100 * answer['share']:.0f}%"
    text += f", computed on {answer['device']}"
    options = ", ".join(f"{name.replace('_', ' ')} {_option(value)}" for name, value in question["options"].items())
    return [f"{text}.", *([f"Options: {options}."] if options else [])]


def _option(value: Any) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.12g}" if isinstance(value, float) else str(value)
    )


def _map_hash(packed: dict[str, Any]) -> str:
    """Return the hash of the values of the map as the page decodes them, in little-endian float32."""
    data = base64.b64decode(packed["b64"])
    if packed["dtype"] == "float16":  # as `floats` in page/wire.js reads them
        data = (np.frombuffer(data, "<f2").astype("f8") * packed["scale"]).astype("<f4").tobytes()
    return hashlib.sha256(data).hexdigest()


def weights(loaded: LoadedModel) -> dict[str, Any]:
    """Return the hash of all parameters and buffers (name, type, shape and bytes), and the number of their values."""
    return _weights(loaded.name, id(loaded.model.network))


@lru_cache(maxsize=8)
def _weights(name: str, _: int) -> dict[str, Any]:
    digest, count = hashlib.sha256(), 0
    for key, value in sorted(model_cache.load(name).model.network.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            continue
        digest.update(f"{key} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(_bytes(value))
        count += value.numel()
    return {"sha256": digest.hexdigest(), "numbers": count}


def _bytes(value: torch.Tensor) -> bytes:
    dense = value.dequantize() if value.is_quantized else value
    return bytes(dense.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def versions() -> dict[str, str]:
    """Return the versions of Saliscope, Python and the relevant packages, and the machine."""
    result = {"saliscope": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**result, "machine": f"{platform.system()} {platform.machine()}"}
