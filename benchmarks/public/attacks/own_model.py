"""A network whose title, class names and layers are scripts, and one for sentences."""

from __future__ import annotations

from pathlib import Path

from benchmarks.public.attacks.browser import PAYLOADS

NAME, WORDS = "scripts", "words"
CODE = """
from torch import nn
PAYLOADS = {payloads!r}
TITLE, CLASSES, WEIGHTS = PAYLOADS[0], len(PAYLOADS), PAYLOADS[2]
PREPROCESSING = {{"size": 64, "resize": 64, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
def labels():
    return list(PAYLOADS)
def build():
    network = nn.Sequential()
    for number, payload in enumerate(PAYLOADS):
        name, block = payload.replace(".", "\u2024"), nn.Sequential()
        block.add_module(name, nn.Conv2d(8 if number else 3, 8, 3, 2 if number < 3 else 1, 1))
        block.add_module("relu", nn.ReLU())
        network.add_module(name, block)
    for name, layer in {{"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(8, CLASSES)}}.items():
        network.add_module(name, layer)
    return network
"""
TEXT = """
from tests.support.two_encoders import build
TITLE = {title!r}
PREPROCESSING = {{"size": 32, "resize": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
"""


def write(folder: Path) -> dict[str, str]:
    """Write model files; return the variables of the app that offers them."""
    models = folder / "models"
    models.mkdir()
    (models / f"{NAME}.py").write_text(CODE.format(payloads=PAYLOADS), encoding="utf-8")
    (models / f"{WORDS}.py").write_text(TEXT.format(title=PAYLOADS[1]), encoding="utf-8")
    (models / "<img src=x onerror=ran()>.py").write_text("raise ValueError('<img src=x onerror=ran()>')\n")
    return {"SALISCOPE_MODELS_DIR": str(models)}
