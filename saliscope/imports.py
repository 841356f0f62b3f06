"""Import large packages without the parts that nothing here needs; those parts are loaded when something uses them."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
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


def defer(name: str, *functions: str) -> Deferred | None:
    """Let `import name` in any package load the module only when it is used; None if it is loaded or not installed.

    `from name import function` also loads nothing if the function is one of `functions`.
    """
    if name in sys.modules or (spec := _find(name)) is None:
        return None
    module = sys.modules[name] = Deferred(name)
    module.__spec__ = spec
    for function in functions:
        vars(module)[function] = _deferred_function(module, function)
    if functions and spec.submodule_search_locations:
        module.__path__ = list(spec.submodule_search_locations)  # Python reads it before the functions of a package
    return module


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return where a module is, without importing the package that contains it."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return importlib.util.find_spec(name)
    package = _find(parent)
    folders = package.submodule_search_locations if package else None
    return importlib.machinery.PathFinder.find_spec(name, folders) if folders else None


def _deferred_function(module: Deferred, name: str) -> Callable[..., Any]:
    def call(*values: Any, **options: Any) -> Any:
        return getattr(_load(module), name)(*values, **options)

    return call
