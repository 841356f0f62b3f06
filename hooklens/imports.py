"""Import large packages without the parts that nothing here needs; those parts are loaded when something uses them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any


class Deferred(types.ModuleType):
    """A module that is imported at the first use of one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        is_package = self.__spec__ is not None and self.__spec__.submodule_search_locations is not None
        if name.startswith("__") and name != "__version__" and not (name == "__path__" and is_package):
            raise AttributeError(name)  # Python itself reads names such as `__file__` and `__path__`
        return getattr(_load(self), name)


def _load(module: Deferred) -> types.ModuleType:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
    return importlib.import_module(module.__name__)


def defer(name: str) -> Deferred | None:
    """Let `import name` in any package load the module only when it is used; None if it is loaded or not installed."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return None
    module = sys.modules[name] = Deferred(name)
    module.__spec__ = spec
    return module


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Import torchvision inside the block without torch's compiler, which takes 1.7 s and 140 MB.

    torchvision imports one function of it, for devices other than the CPU.
    """
    name = "torch._dynamo.utils"
    if name in sys.modules:
        yield
        return
    module = Deferred(name)

    def is_compile_supported(device: str) -> bool:
        supported: bool = _load(module).is_compile_supported(device)
        return supported

    vars(module)["is_compile_supported"] = is_compile_supported
    sys.modules[name] = module
    try:
        yield
    finally:
        if sys.modules.get(name) is module:
            del sys.modules[name]
