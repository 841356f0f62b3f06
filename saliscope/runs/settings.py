"""The settings of a run, and the classes of its network by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saliscope.errors import Refused
from saliscope.names import did_you_mean, nearest

PREDICTED, LABEL = "predicted", "label"
WRONG = "wrong"
PRECISIONS = ("auto", "float32", "bf16")
SHARD = 512
"""Images per shard."""
FORMAT = 1
"""The version of the files of a run, and of an index. Runs that were written before it existed have version 1."""


@dataclass(frozen=True)
class Settings:
    """The user's settings. `where` is "", "wrong" or "label=NAME"; `own` has the arguments of `zoo.add` besides `name`.

    `target` is "predicted", "label" (or the predicted class if the network does not have the label) or a class.
    """

    model: str = "auto"
    own: Mapping[str, Any] = field(default_factory=dict)
    method: str = "grad_cam"
    layer: str | None = None
    target: str = PREDICTED
    where: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 16
    shard: int = SHARD
    precision: str | None = None
    seed: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Settings:
        """Return the settings in the record of a run."""
        return cls(**{name: record[name] for name in cls.__dataclass_fields__ if name in record})

    @property
    def only_label(self) -> str:
        """The label in `where`, or empty."""
        return self.where.partition("=")[2] if self.where.startswith("label=") else ""

    def method_options(self) -> dict[str, Any]:
        """Return the options of the method, including those of the run.

        Errors   Refused if the method does not have an option, or for an invalid value
        """
        from explainers import METHODS  # torch takes seconds to start

        method = METHODS[self.method]
        options = dict(self.options)
        if "seed" in method.options:
            options.setdefault("seed", self.seed)
        if self.precision is not None:
            if self.precision not in PRECISIONS:
                raise Refused(f"Invalid precision {self.precision!r}. Use {', '.join(PRECISIONS)}.")
            if "precision" in method.options:
                options["precision"] = self.precision
            elif self.precision == "bf16":
                raise Refused(f"{self.method} computes in float32, so the precision bf16 is not supported. Omit it.")
        if self.layer is not None and not method.takes_layer:
            raise Refused(f"{self.method} explains the input, so the layer {self.layer!r} is not supported. Omit it.")
        for name, value in options.items():
            if name not in method.options:
                known = ", ".join(method.options) or "none"
                raise Refused(f"{self.method} has no option {name!r}. Available: {known}.")
            try:
                method.options[name].check(value)
            except ValueError as error:
                raise Refused(str(error)) from None
        return options | ({"layer": self.layer} if self.layer is not None else {})

    def check(self) -> None:
        """Check the settings before any work starts.

        Errors   Refused
        """
        from explainers import METHODS  # torch takes seconds to start

        if self.method not in METHODS:
            suggestion = did_you_mean(map(repr, nearest(self.method, METHODS)))
            raise Refused(f"Unknown method {self.method!r}. {suggestion}Run `saliscope methods` to see all methods.")
        for name, value in {"batch_size": self.batch_size, "shard": self.shard}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise Refused(f"Invalid {name} {value!r}. Use an integer of at least 1.")
        if not isinstance(self.target, str):
            raise Refused(f"Target {self.target!r} is not a string. Use predicted, label, or a class: {self.target!s}.")
        if METHODS[self.method].returns not in ("grid", "pixels", "heat"):
            raise Refused(f"{self.method} returns {METHODS[self.method].returns}, not a map. Choose another method.")
        if self.where and self.where != WRONG and not self.only_label:
            raise Refused(f"Invalid where {self.where!r}. Use wrong, or label=NAME.")
        self.method_options()


def check_engine(
    engine: str, device: str, workers: int | None, *, address: str | None, gpus: float, min_workers: int | None
) -> None:
    """Check that the engine supports the options of a run.

    Errors   Refused
    """
    if workers is not None and workers < 0:
        raise Refused(f"Invalid workers {workers}. Use at least 0.")
    if engine not in ("local", "ray"):
        raise Refused(f"Unknown engine {engine!r}. Use local or ray.")
    if engine == "ray" and device not in ("auto", "cpu", "cuda", "mps", "xpu"):
        raise Refused(
            f"Invalid device {device!r} with ray: Ray assigns the devices of a machine to its workers. Use auto, cpu, "
            "cuda, mps or xpu."
        )
    only = {"address": address, "gpus": gpus, "min_workers": min_workers}
    given = [name for name, value in only.items() if value]
    if engine == "local" and given:
        raise Refused(f"{given[0]} needs the engine ray.")
    if min_workers and workers and min_workers > workers:
        raise Refused(f"min_workers {min_workers} is more than the maximum, workers {workers}.")


def check_format(settings: Mapping[str, Any], folder: str | Path, what: str = "run") -> None:
    """Check that this version of the code knows the format of a run, or of an index.

    Errors   Refused for a newer format
    """
    version = settings.get("format", 1)
    if version not in range(1, FORMAT + 1):
        raise Refused(
            f"The {what} in {str(folder)!r} has format {version!r}, but this version of Saliscope knows formats up to "
            f"{FORMAT}. Install the version of Saliscope that wrote the {what} or a newer one, or use another folder."
        )


WNIDS = Path(__file__).with_name("imagenet_wnids.txt")
"""The WordNet IDs of the thousand ImageNet classes in order, which are the names of the folders of ImageNet."""
WHOLE = re.compile(r"\d+\.0+")
"""The index of a class in a column of floats, as pandas writes it if other labels are missing."""
DIGITS = 10
TENCH = "tench"
"""The first ImageNet class, by which a network with these classes is recognized."""


def is_imagenet(names: Sequence[str]) -> bool:
    """Return whether these are the thousand classes of ImageNet."""
    return len(names) == 1000 and _plain(names[0].partition(",")[0]) == TENCH


class Classes:
    """The network's classes by name.

    A label is the name of a class, one of its comma-separated synonyms, or its index. For networks with the thousand
    ImageNet classes, it may also be a WordNet ID such as n01440764. A name shared by several classes matches none.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        parts = [[word.strip() for word in name.split(",")] for name in self.names]
        whole = [[name] for name in self.names]
        both = [[name, *words] for name, words in zip(self.names, parts, strict=True)]
        # Exact matches take precedence: ImageNet has Cardigan, a dog, and cardigan, a garment.
        self._exact, self._normalized = [_unique(whole, str), _unique(parts, str)], _unique(both, _plain)
        if is_imagenet(self.names):
            self._normalized |= {wnid: index for index, wnid in enumerate(WNIDS.read_text(encoding="ascii").split())}

    def find(self, label: str | None) -> int | None:
        """Return the class of a label, or None if the network has no such class or several."""
        if label is None:
            return None
        index = self._find_name(label)
        number = label.partition(".")[0] if WHOLE.fullmatch(label) else label
        if index is None and number != label:
            index = self._find_name(number)
        if index is None and number.isdecimal() and len(number) < DIGITS and int(number) < len(self.names):
            return int(number)
        if index is None and "," in label:
            classes = {self._find_name(word.strip()) for word in label.split(",")} - {None}
            return classes.pop() if len(classes) == 1 else None
        return index

    def _find_name(self, word: str) -> int | None:
        exact = next((known[word] for known in self._exact if word in known), None)
        return self._normalized.get(_plain(word)) if exact is None else exact

    def near(self, label: str) -> str:
        """Return classes with a similar name, as a question; empty if there are none."""
        words = [name for name in self.names if _plain(label) in _plain(name)][:5]
        if words:
            return did_you_mean(map(repr, words))
        known = [word.strip() for name in self.names for word in name.split(",")]
        return did_you_mean(map(repr, nearest(label, known)))

    def name(self, index: int) -> str:
        """Return the name of the class, or its index if it has no name."""
        return self.names[index] if index < len(self.names) else str(index)


def _unique(names: list[list[str]], normalize: Callable[[str], str]) -> dict[str, int]:
    """Return the classes by those of their names that no other class has."""
    classes_by_name: dict[str, set[int]] = {}
    for index, words in enumerate(names):
        for word in words:
            classes_by_name.setdefault(normalize(word), set()).add(index)
    return {word: next(iter(classes)) for word, classes in classes_by_name.items() if len(classes) == 1}


def _plain(text: str) -> str:
    return " ".join(text.replace("_", " ").casefold().split())
