"""Every method of another library is here, or is a stated gap."""

from __future__ import annotations

import importlib
import inspect

import pytest

import explainers
from explainers import METHODS
from tests.support.peer_methods import NO_EXPLAINERS, PEERS


def test_every_peer_method_is_here_or_a_stated_gap():
    for library, names in PEERS.items():
        for name, ours in names.items():
            is_offered = ours in METHODS or hasattr(explainers, ours.partition("(")[0])
            assert is_offered or (ours.startswith("gap: ") and len(ours) > 20), f"{library}: {name} gives no reason"


@pytest.mark.parametrize("library", [name for name in PEERS if not name.startswith("xplique")])
def test_the_list_covers_all_methods_of_the_installed_library(library):
    module = pytest.importorskip(library)
    package = library.partition(".")[0]
    offered = {
        name
        for name, value in inspect.getmembers(module, inspect.isclass)
        if not name.startswith("_") and value.__module__.startswith(package)
    }
    if library == "zennit.composites":
        offered = {name for name in offered if getattr(module, name).__module__ == library}
    known = set(PEERS[library]) | NO_EXPLAINERS.get(library, set())

    assert offered - known == set(), f"{importlib.import_module(package).__name__} has new methods"
