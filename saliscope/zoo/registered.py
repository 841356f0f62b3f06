"""Models that the owner of a host offers in addition to the listed ones: by option, by setting, or with `add`.

They have a public name, which does not reveal folders of this machine, and are only found by that name.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from saliscope.zoo.model import Model
from saliscope.zoo.overrides import Overrides
from saliscope.zoo.sources.source import ModelInfo, OpenSource, Source

LOCAL_PATH = re.compile(r"(?:^|(?<=:))(?:local-dir:)?(?:(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^:]*|[^:]+\.py)(?=:|$)")
"""The part of a name that is a path, as in `hf:/data/net` and `src/net.py:build`."""


@dataclasses.dataclass
class Registered:
    """One of the owner's models."""

    name: str
    """The public name."""
    source_name: str
    """The name that is passed to the source."""
    source: Source
    custom: Overrides
    _info: ModelInfo | None = None

    def update(self, model: Model) -> Model:
        """Return the model under its public name, also in its notes, and list its properties from now on."""
        bytes_ = sum(value.numel() * value.element_size() for value in model.network.parameters())
        self._info = ModelInfo(
            name=self.name,
            title=title_of(self.name),
            weights=Path(self.custom.weights).name if self.custom.weights else "",
            classes=len(model.labels),
            megabytes=round(bytes_ / 1e6, 1),
            side=model.side,
            task=model.task,
            channels=model.channels,
        )
        notes = tuple(note.replace(repr(self.source_name), repr(self.name)) for note in model.notes)
        return dataclasses.replace(model, name=self.name, notes=notes)

    def info(self) -> ModelInfo:
        """Return what is known about the model; before it is loaded, its name and whether it needs a download."""
        if self._info is not None:
            return self._info
        ready = not isinstance(self.source, OpenSource) or self.source.ready(self.source_name)
        return ModelInfo(self.name, title_of(self.name), cached=ready, fetched=True)


def public_name(name: str) -> str:
    """Return the name without the folders of a path in it: `hf:/data/net` becomes `hf:net`."""
    return LOCAL_PATH.sub(lambda match: re.split(r"[/\\]", match.group().rstrip("/\\"))[-1], name)


def title_of(name: str) -> str:
    """Return the title: "resnet18.a1_in1k (timm)" for `timm:resnet18.a1_in1k`; other names are their own titles."""
    prefix, _, rest = name.partition(":")
    packages = {"timm": "timm", "hf": "Hugging Face"}
    return f"{rest} ({packages[prefix]})" if rest and prefix in packages else name
