"""The interface of a model source, and the properties of its models.

ModelUnavailable(RuntimeError)   unknown name, or weights that cannot be read or downloaded
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.overrides import TorchFunctionMode

from saliscope.zoo import settings
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model, Task


class ModelUnavailable(RuntimeError):
    """A model that cannot be loaded. Errors of `saliscope.zoo` also list the models that can."""


class UnknownModel(ModelUnavailable):
    """A name that no source knows; `reason` is the message without what a program or a shell can do about it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} Run `saliscope models` or call `list_models()` to see the available names.")
        self.reason = reason


@dataclass(frozen=True)
class ModelInfo:
    """The properties of a model that are known before it is loaded."""

    name: str
    """Unique across all sources."""
    title: str
    weights: str = ""
    """Name of the weights in torchvision, or the name that their publisher uses."""
    classes: int = 0
    """0 if it is not known before the model is loaded, as for the next two."""
    megabytes: float = 0.0
    """Size of the file of weights."""
    side: int = 0
    """Height and width of the input in pixels; the longer side if it is not square."""
    cached: bool = True
    """Whether the model loads without a download."""
    fetched: bool = False
    """Whether the weights are downloaded; False if an installed package contains them."""
    accuracy: float | None = None
    """Percent on the validation set of the weights' dataset, as published with the weights; see `measure`."""
    task: Task = "classification"
    channels: int = 3
    """Channels of the input."""
    measure: str = "top-1"
    """The metric of `accuracy`: "top-1" on ImageNet-1k, "mIoU" for segmentation, "box mAP" for detection on COCO."""
    error: str = ""
    """Why the model cannot be loaded, if its file fails, or else empty."""
    offline: bool = False
    """Whether the weights are missing and cannot be downloaded, because an option or a variable forbids it."""


class Source(ABC):
    """A source of models. `list` and `load` are required; overriding the other methods saves work."""

    package: str = ""
    """The installed package that contains the weights, or empty if they are downloaded."""

    @abstractmethod
    def list(self) -> Iterator[ModelInfo]:
        """Yield every model; a caller can stop at the first cached one."""

    @abstractmethod
    def load(self, name: str, progress: Progress | None = None) -> Model:
        """Load one model of `list` on the CPU; `progress(done, total)` is called with bytes during a download.

        Errors   ModelUnavailable, with only the reason
        """

    def build(self, name: str, classes: int | None) -> Model:
        """Return the network of a name without its weights, with `classes` outputs, for weights of the user.

        Errors   ModelUnavailable
        """
        raise ModelUnavailable(f"{name!r} does not support other weights")

    def names(self) -> Mapping[str, str]:
        """Return every accepted name with the listed name that it is an alias of."""
        return {info.name: info.name for info in self.list()}

    def may_download(self, name: str) -> bool:
        """Return whether weights that are not cached may be downloaded."""
        return not settings.offline()

    def labels(self, name: str) -> Sequence[str]:
        """Return the class names in the order of the outputs."""
        return self.load(name).labels

    def is_tested(self, name: str) -> bool:
        """Return whether a model is used exactly as `load` returns it: its class names and preprocessing are tested.

        All other models run once after `load`, see `overrides.complete`: the number of class names is compared with the
        number of outputs, missing settings get defaults, and the notes of the model list these defaults.
        """
        return True


class OpenSource(Source):
    """A source whose names cannot be listed: those of a package, of folders, or of the user's functions.

    Loading such a name reads files and may run code. These names are for programs and for the owner of a host; names
    from visitors of a page are never passed to these sources.
    """

    def list(self) -> Iterator[ModelInfo]:
        """Yield nothing."""
        return iter(())

    def is_tested(self, name: str) -> bool:
        """Return False: these are models of the user."""
        return False

    @abstractmethod
    def accepts(self, name: str) -> bool:
        """Return whether a name has the format of this source, without importing or reading anything."""

    def ready(self, name: str) -> bool:
        """Return whether the model loads without a download."""
        return True


class no_random_init(TorchFunctionMode):
    """Skip the random initialization of weights that will be overwritten.

    Initialization takes most of the time of building a network (ConvNeXt-T: 2.5 s) and would advance the caller's
    random generator. The mode only affects the current thread.
    """

    INITIALIZERS = frozenset({"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_"})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in self.INITIALIZERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
