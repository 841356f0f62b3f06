"""The interface of a model source, and what it tells about each of its models.

ModelUnavailable(RuntimeError)   unknown name, or weights that cannot be read or downloaded
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.overrides import TorchFunctionMode

from models.downloads import Progress
from models.model import Model, Task


class ModelUnavailable(RuntimeError):
    """A model that cannot be loaded; from `models`' functions, the sentence names those that can."""


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model before it is loaded."""

    name: str
    """Unique among all sources."""
    title: str
    weights: str
    """Name of the weights, in torchvision's table or as their publisher calls them."""
    classes: int
    megabytes: float
    """Size of the file of weights."""
    side: int
    """Height and width of the input in pixels; the longer of both where it is not square."""
    cached: bool
    """Whether it loads without a download."""
    fetched: bool
    """Whether the weights are downloaded; False where an installed package holds them."""
    accuracy: float | None
    """In percent on the validation set of what the weights were made for, as published with them; see `measure`."""
    task: Task = "classification"
    channels: int = 3
    """Channels of the input."""
    measure: str = "top-1"
    """What `accuracy` is: "top-1" of ImageNet-1k, "mIoU" of segmentation, "box mAP" of detection on COCO."""


class Source(ABC):
    """A source of models; `list` and `load` are enough, overriding the rest saves work."""

    package: str = ""
    """The installed package that holds the weights; empty where they are downloaded."""

    @abstractmethod
    def list(self) -> Iterator[ModelInfo]:
        """Every model, lazily: whoever looks for the first cached one stops there."""

    @abstractmethod
    def load(self, name: str, progress: Progress | None = None) -> Model:
        """Load one model of `list`, on the CPU; `progress(done, total)` is called with bytes during a download.

        Errors   ModelUnavailable, with the reason alone
        """

    def build(self, name: str, classes: int | None) -> Model:
        """The network of a name as `load`, without its weights, for weights of the user's own; `classes` outputs.

        Errors   ModelUnavailable
        """
        raise ModelUnavailable(f"{name!r} has its own weights and takes no others")

    def names(self) -> Mapping[str, str]:
        """Every accepted name with the listed name that it stands for."""
        return {info.name: info.name for info in self.list()}

    def missing(self) -> str:
        """How to install `package`, where it is missing; else empty."""
        return ""

    def labels(self, name: str) -> Sequence[str]:
        """Class names in the order of the network's outputs."""
        return self.load(name).labels


class OpenSource(Source):
    """A source of names that nobody can list: those of a package, of folders, of the user's own functions.

    Such a name reads files and may run code. It is for a program and for the owner of a host: visitors never get here.
    """

    def list(self) -> Iterator[ModelInfo]:
        """None."""
        return iter(())

    @abstractmethod
    def accepts(self, name: str) -> bool:
        """Whether a name is written as this source's are; nothing is imported or read."""

    def ready(self, name: str) -> bool:
        """Whether the model loads without a download."""
        return True


class no_random_init(TorchFunctionMode):
    """Leave out the random initialisation of weights that are about to be overwritten.

    It takes most of the time of building a network (ConvNeXt-T 2.5 s) and would advance the caller's generator.
    The mode is local to the thread.
    """

    INITIALISERS = frozenset({"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_"})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in self.INITIALISERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
