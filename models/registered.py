"""Models that the owner of a host offers beside those of the list: by a flag, by the settings, or by `models.add`.

They have a public name, which tells no folder of this machine, and are found by that name alone.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from models.model import Model
from models.own import Given
from models.sources.source import ModelInfo, OpenSource, Source

LOCAL_PATH = re.compile(r"(?:^|(?<=:))(?:local-dir:)?(?:(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^:]*|[^:]+\.py)(?=:|$)")
"""The part of a name that is a path: `hf:/data/net`, `src/net.py:build`."""


@dataclasses.dataclass
class Registered:
    """One model of the owner's."""

    name: str
    """By which it is listed and asked for."""
    asked: str
    """What the source is asked for."""
    source: Source
    given: Given
    _info: ModelInfo | None = None

    def loaded(self, model: Model) -> Model:
        """The model under its public name; what is listed of it is from now on what was found."""
        bytes_ = sum(value.numel() * value.element_size() for value in model.network.parameters())
        self._info = ModelInfo(
            name=self.name,
            title=title_of(self.name),
            weights=Path(self.given.weights).name if self.given.weights else "",
            classes=len(model.labels),
            megabytes=round(bytes_ / 1e6, 1),
            side=model.side,
            cached=True,
            fetched=False,
            accuracy=None,
            task=model.task,
            channels=model.channels,
        )
        return dataclasses.replace(model, name=self.name)

    def info(self) -> ModelInfo:
        """What is known of it; before it is loaded, its name and whether that needs a download."""
        if self._info is not None:
            return self._info
        ready = not isinstance(self.source, OpenSource) or self.source.ready(self.asked)
        return ModelInfo(
            name=self.name,
            title=title_of(self.name),
            weights="",
            classes=0,
            megabytes=0.0,
            side=0,
            cached=ready,
            fetched=True,
            accuracy=None,
        )


def public_name(asked: str) -> str:
    """The name without the folders of a path in it: `hf:/data/net` is `hf:net`."""
    return LOCAL_PATH.sub(lambda found: re.split(r"[/\\]", found.group().rstrip("/\\"))[-1], asked)


def title_of(name: str) -> str:
    """`timm:resnet18.a1_in1k` is "resnet18.a1_in1k (timm)"; other names are their own titles."""
    prefix, _, rest = name.partition(":")
    packages = {"timm": "timm", "hf": "Hugging Face"}
    return f"{rest} ({packages[prefix]})" if rest and prefix in packages else name
