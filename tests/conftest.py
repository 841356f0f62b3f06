"""Shared by all tests: the helper modules beside this file can be imported, and slow tests run with `--slow` only."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


# Tiny networks run faster on one thread, and test runs side by side do not wait for each other's threads, nor for those
# of the servers and commands that they start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        action="store_true",
        help="also run the tests marked slow (large networks, rarer ways over the page)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: large networks, rarer ways over the page; left out unless --slow is given"
    )


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: tests in the browser wait most of their time."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files go to the workers in this order: one with long waits, come last, would leave all other workers idle.
    waits = [Path(__file__).parent / name for name in ("page", "test_networks.py", "test_recipe_tab.py")]
    items.sort(key=lambda item: not any(item.path.is_relative_to(each) for each in waits))
    if config.getoption("--slow", default=False):
        return
    skip = pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True, scope="module")
def _freeze_imported_objects() -> Iterator[None]:
    """Freeze the objects made by imports: garbage collections and counts of live tensors then see the tests' own."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def frozen() -> None:
    """Freeze what earlier tests of the module have left, for tests that count live objects: they walk over fewer."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a run of test_oracles.py: which oracle covers which method."""
    if not any("test_oracles.py" in report.nodeid for report in terminalreporter.getreports("passed")):
        return
    from oracles import ORACLES

    terminalreporter.section("oracles")
    for name, oracle in ORACLES.items():
        terminalreporter.write_line(f"{name:<28} {oracle.truth}")
