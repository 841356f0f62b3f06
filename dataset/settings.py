"""The settings of a run: what its rows depend on, and how those of two runs differ."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset.errors import Refused

if TYPE_CHECKING:
    from models import Model

PREDICTED, LABEL = "predicted", "label"
WRONG = "wrong"
PRECISIONS = ("auto", "float32", "bf16")
SHARD = 512
"""Pictures of a shard."""


@dataclass(frozen=True)
class Settings:
    """What a user asks for. `where` is empty, "wrong" or "label=NAME"; `own` is what `models.add` takes besides a name.

    `target` is "predicted", "label" (the predicted class where the network has no such class) or a class.
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

    @property
    def only_label(self) -> str:
        """The label that `where` asks for; empty without one."""
        return self.where.partition("=")[2] if self.where.startswith("label=") else ""

    def method_options(self) -> dict[str, Any]:
        """The options of the method, those of the run among them.

        Errors   Refused where the method has no such option, or not that value
        """
        from explainers import METHODS  # torch takes seconds to start

        method = METHODS[self.method]
        given = dict(self.options)
        for name, value in {"seed": self.seed, "precision": self.precision}.items():
            if name in given and value not in (None, 0, given[name]):
                raise Refused(f"--{name} {value} and --option {name}={given[name]} contradict each other. Give one.")
        if "seed" in method.options:
            given.setdefault("seed", self.seed)
        if self.precision is not None:
            if self.precision not in PRECISIONS:
                raise Refused(f"--precision {self.precision} is not possible. Give {', '.join(PRECISIONS)}.")
            if "precision" in method.options:
                given["precision"] = self.precision
            elif self.precision == "bf16":
                raise Refused(f"--precision bf16 is not possible: {self.method} computes in float32. Leave it out.")
        if self.layer is not None and not method.takes_layer:
            raise Refused(f"--layer {self.layer} is not possible: {self.method} explains the input. Leave it out.")
        for name, value in given.items():
            if name not in method.options:
                known = ", ".join(method.options) or "none"
                raise Refused(f"{self.method} has no option {name!r}. It has: {known}.")
            try:
                method.options[name].check(value)
            except ValueError as error:
                raise Refused(str(error)) from None
        return given | ({"layer": self.layer} if self.layer is not None else {})

    def check(self) -> None:
        """Refuse what cannot be, before any work.

        Errors   Refused
        """
        from explainers import METHODS  # torch takes seconds to start
        from explainers.errors import nearest  # as above

        if self.method not in METHODS:
            raise Refused(f"There is no method {self.method!r}. {nearest(self.method, METHODS)}See: hooklens methods")
        for name, value in {"--batch-size": self.batch_size, "shard": self.shard}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise Refused(f"{name} {value!r} is not possible. Give a whole number of at least 1.")
        if not isinstance(self.target, str):
            raise Refused(f"The target {self.target!r} is no text. Give predicted, label, or a class: {self.target!s}.")
        if METHODS[self.method].returns not in ("grid", "pixels", "heat"):
            raise Refused(f"{self.method} gives no map of the picture but {METHODS[self.method].returns}.")
        if self.where and self.where != WRONG and not self.only_label:
            raise Refused(f"--where {self.where!r} is not possible. Give wrong, or label=NAME.")
        self.method_options()

    def record(self, model: Model, listed: str) -> dict[str, Any]:
        """What a folder says of its run; runs of equal records have equal rows."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        name = model.name if self.model == "auto" else self.model  # a network of one's own is found by what was asked
        seen = repr((model.labels, model.preparation))  # a file of labels may have changed
        return {
            **fields,
            "model": name,
            "own": dict(self.own),
            "options": dict(self.options),
            "pictures": listed,
            "labels_and_preprocessing": hashlib.sha256(seen.encode("utf-8", "backslashreplace")).hexdigest()[:16],
        }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ, each as "name: old there, new now"."""
    return [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def weights_hash(model: Model) -> str:
    """SHA-256 of all parameters and buffers with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(_bytes()).numpy().tobytes())
    return digest.hexdigest()


def _bytes() -> Any:
    import torch  # torch takes seconds to start

    return torch.uint8


WNIDS = Path(__file__).with_name("imagenet_wnids.txt")
"""WordNet's names of ImageNet's thousand classes, in their order, by which its folders are called."""
WHOLE = re.compile(r"\d+\.0+")
"""A class's number in a column of floats, as pandas writes it where other labels are missing."""
DIGITS = 10
TENCH = "tench"
"""The first of them, by which a network of these classes is known."""


class Classes:
    """The network's classes by name: a label is a class's name, one of its comma-separated synonyms, or its number; for
    networks of ImageNet's thousand classes also WordNet's name, such as n01440764. A name that several classes have
    stands for none of them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        parts = [[word.strip() for word in name.split(",")] for name in self.names]
        whole = [[name] for name in self.names]
        both = [[name, *words] for name, words in zip(self.names, parts, strict=True)]
        # As it is written before what is written alike: ImageNet has Cardigan, a dog, and cardigan, a garment.
        self._exact, self._alike = [_unique(whole, str), _unique(parts, str)], _unique(both, _plain)
        if len(self.names) == 1000 and _plain(self.names[0].partition(",")[0]) == TENCH:
            self._alike |= {wnid: index for index, wnid in enumerate(WNIDS.read_text(encoding="ascii").split())}

    def find(self, label: str | None) -> int | None:
        """The class of a label, None where the network has no such class, or several."""
        if label is None:
            return None
        found = self._named(label)
        number = label.partition(".")[0] if WHOLE.fullmatch(label) else label
        if found is None and number != label:
            found = self._named(number)
        if found is None and number.isdecimal() and len(number) < DIGITS and int(number) < len(self.names):
            return int(number)
        if found is None and "," in label:
            named = {self._named(word.strip()) for word in label.split(",")} - {None}
            return named.pop() if len(named) == 1 else None
        return found

    def _named(self, word: str) -> int | None:
        exact = next((known[word] for known in self._exact if word in known), None)
        return self._alike.get(_plain(word)) if exact is None else exact

    def near(self, label: str) -> str:
        """Classes whose names hold the word, or are spelt alike, as a question; empty without any."""
        from explainers.errors import nearest  # torch takes seconds to start

        words = [name for name in self.names if _plain(label) in _plain(name)][:5]
        if words:
            return f"Did you mean {' or '.join(repr(word) for word in words)}? "
        return nearest(label, [word.strip() for name in self.names for word in name.split(",")])

    def name(self, index: int) -> str:
        """The class's name; its number where it has none."""
        return self.names[index] if index < len(self.names) else str(index)


def _unique(names: list[list[str]], spelt: Callable[[str], str]) -> dict[str, int]:
    """The classes by those of their names that no other class has."""
    found: dict[str, set[int]] = {}
    for index, words in enumerate(names):
        for word in words:
            found.setdefault(spelt(word), set()).add(index)
    return {word: next(iter(classes)) for word, classes in found.items() if len(classes) == 1}


def _plain(text: str) -> str:
    return " ".join(text.replace("_", " ").casefold().split())
