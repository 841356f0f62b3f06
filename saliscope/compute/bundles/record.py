"""The record of a map in a bundle: all parameters, and the hashes of its inputs."""

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
from saliscope.images.pixels import pixel_hash

FORMAT, VERSION = "saliscope-bundle", 1
PACKAGES = ("torch", "torchvision", "pillow", "numpy")


def record(step: Answer, packed: dict[str, Any]) -> dict[str, Any]:
    """Return the question that reproduces an answer, and its description; `packed` is the map as sent to the page."""
    settings = step.settings
    options = {name: value for name, value in step.options.items() if isinstance(value, (bool, int, float, str))}
    question = {
        "model": settings.loaded.name,
        "layer": settings.layer,
        "class": step.name,
        "method": settings.method.name,
        "options": options,
        "bands": settings.bands.text if settings.bands else "",
        "plane": step.plane if step.planes else None,
        **({"edit": settings.edit.text} if settings.edit else {}),
    }
    answer = {
        "title": settings.method.title,
        "model": settings.loaded.title,
        "reads_class": settings.method.reads_class,
        "takes_layer": settings.takes_layer,
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
        "input": _input(step),
        "shape": [packed["h"], packed["w"]],
        "sha256": _map_hash(packed),
    }


def _input(step: Answer) -> dict[str, Any]:
    """Return the hash and the size of the crop that the network sees, before an edit."""
    edit = step.settings.edit
    known = {"sha256": edit.unedited if edit else pixel_hash(step.crop), "size": list(step.crop.size)}
    return known | ({"second_sha256": edit.second} if edit and edit.second else {})


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
