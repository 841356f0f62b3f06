"""What a bundle says about a map: every parameter, and the hashes of what it was computed from."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import platform
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui import words
from ui.engine import model_cache
from ui.engine.messages import Answer, Loaded

if TYPE_CHECKING:
    import torch
    from PIL import Image

FORMAT, VERSION = "hooklens-bundle", 1
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
PACKAGES = ("torch", "torchvision", "pillow", "numpy")


def record(step: Answer, packed: dict[str, Any]) -> dict[str, Any]:
    """The question that gives this answer again, and what the answer is; `packed` is its map as the page gets it."""
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
    }
    answer = {
        "title": settings.method.title,
        "model": settings.loaded.title,
        "reads_class": settings.method.reads_class,
        "takes_layer": settings.takes_layer,
        "probability": None if settings.unit else step.confidence,
        "unit": words.unit(settings),
        "share": step.share,
        "seconds": round(step.explanation.seconds, 3),
    }
    return {
        "question": question,
        "answer": answer,
        "seed": options.get("seed"),
        "input": {"sha256": pixels(step.seen), "size": list(step.seen.size)},
        "shape": [packed["h"], packed["w"]],
        "sha256": _sent(packed),
    }


def pixels(seen: Image.Image) -> str:
    """The hash of the part of the photograph that the network sees."""
    return hashlib.sha256(seen.convert("RGB").tobytes()).hexdigest()


def _sent(packed: dict[str, Any]) -> str:
    """The hash of the map's values, little-endian float32, as the page holds them."""
    data = base64.b64decode(packed["b64"])
    if packed["dtype"] == "float16":  # as `floats` in static/wire.js reads them
        import numpy as np  # a tenth of a second that only maps of more than 512 x 512 need

        data = (np.frombuffer(data, "<f2").astype("f8") * packed["scale"]).astype("<f4").tobytes()
    return hashlib.sha256(data).hexdigest()


def weights(loaded: Loaded) -> dict[str, Any]:
    """The hash of all parameters and buffers, by name, type, shape and bytes; and how many numbers these are."""
    return _weights(loaded.name, id(loaded.model.network))


@lru_cache(maxsize=8)
def _weights(name: str, _: int) -> dict[str, Any]:
    import torch  # torch takes seconds to start

    hashed, count = hashlib.sha256(), 0
    for key, value in sorted(model_cache.load(name).model.network.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            continue
        hashed.update(f"{key} {value.dtype} {list(value.shape)}\n".encode())
        hashed.update(_bytes(value))
        count += value.numel()
    return {"sha256": hashed.hexdigest(), "numbers": count}


def _bytes(value: torch.Tensor) -> bytes:
    import torch  # torch takes seconds to start

    dense = value.dequantize() if value.is_quantized else value
    return bytes(dense.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def versions() -> dict[str, str]:
    """Of Hooklens, Python, and the packages that computed; and the machine."""
    found = {"hooklens": version(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "machine": f"{platform.system()} {platform.machine()}"}


@lru_cache(maxsize=1)
def version() -> str:
    """Hooklens's own version: that of the folder it runs from, else of the installed package."""
    try:
        return str(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, ValueError, KeyError):
        return importlib.metadata.version("hooklens")
