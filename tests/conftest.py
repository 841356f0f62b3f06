"""Settings of all tests: one thread each, and slow tests and all cases of large tests only with `--slow`."""

from __future__ import annotations

import gc
import os
from collections import Counter
from itertools import chain
from typing import Any
from zlib import crc32

import pytest
import torch

# Tiny networks run faster on one thread, and test runs side by side do not wait for each other's threads, nor for those
# of the servers and commands that they start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

gc.disable()  # until the tests start: imports make no garbage, and take a fifth less time

FEW_CASES = 5
"""A sample contains about this number of the cases of a test, or one of `SAMPLE` cases if that is more."""
SAMPLE = 16
LEFT_OUT = pytest.StashKey[int]()
APP_TESTS = (
    ("tests/saliscope/browser/features",),
    ("tests/saliscope/browser", *(f"tests/saliscope/page/test_{each}" for each in ("agents", "attack", "endpoints"))),
)
"""Tests with the fixture `app`: two parts of about the same length, each with a server and a browser of its own."""
GROUPS = (
    *APP_TESTS,
    # They need the same process servers, which import torch's distributed packages and compiler.
    ("tests/explainers/call/test_sharded.py", "tests/explainers/hooks/test_training_distributed.py"),
)
"""Files that one worker runs, because they share what takes long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        action="store_true",
        help="also run the tests marked slow, and all cases of the tests marked sample",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: large networks and rare paths; runs only with --slow")
    config.addinivalue_line(
        "markers", "sample: tests with many cases; a fixed sample of the cases runs, and all of them with --slow"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: tests in the browser wait most of their time."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each of `GROUPS` to one worker; the tests of the running app share its server, its results and a browser."""
    if config.getoption("dist") != "loadfile" or config.getoption("--slow"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class Grouped(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((group[0] for group in GROUPS if file.startswith(group)), file)

    return Grouped(config, log)


@pytest.hookimpl(trylast=True)  # after the selection by -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files go to the workers in this order: one with long waits, come last, would leave all other workers idle.
    others = ("tests/explainers/layers/test_networks.py", "tests/saliscope/page/test_recipe_view.py")
    slowest = (*chain(*APP_TESTS), *others)
    items.sort(key=lambda item: not item.nodeid.startswith(slowest))
    # A test that is named on the command line always runs.
    if config.getoption("--slow") or any("::" in argument for argument in config.args):
        return
    # Tests selected with -k are not sampled: they are about one method or one file.
    cases = Counter() if config.option.keyword else Counter(_function(item) for item in items)
    total = len(items)
    items[:] = [item for item in items if _runs_without_slow(item, cases[_function(item)])]
    config.stash[LEFT_OUT] = total - len(items)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = total - len(items)


def pytest_collection_finish() -> None:
    gc.enable()


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _runs_without_slow(item: pytest.Item, cases: int) -> bool:
    """Return whether a test runs without --slow; the sample of cases depends only on their names."""
    if item.get_closest_marker("slow"):
        return False
    every = min(SAMPLE, cases // FEW_CASES + 1) if item.get_closest_marker("sample") else 1
    return crc32(item.nodeid.encode()) % every == 0


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the number of left-out tests from a worker of pytest-xdist; all workers have the same number."""
    # A worker that has crashed has no output.
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


@pytest.fixture(autouse=True, scope="module")
def _freeze_imported_objects() -> None:
    """Freeze the objects made by imports: garbage collections and counts of live tensors then see the tests' own.

    They stay frozen, because a collection of all objects takes a second for each file of tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Give networks with random weights the same weights in every selection of tests."""
    torch.manual_seed(0)


@pytest.fixture
def frozen() -> None:
    """Freeze what earlier tests of the module have left, for tests that count live objects: they walk over fewer."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were left out and, after a run of test_oracles.py, the oracle of each method."""
    left_out = terminalreporter.config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"{left_out:,} tests were left to --slow (make test ARGS=--slow).")
    if not any("test_oracles.py" in report.nodeid for report in terminalreporter.getreports("passed")):
        return
    from tests.support.oracles import ORACLES

    terminalreporter.section("oracles")
    for name, oracle in ORACLES.items():
        terminalreporter.write_line(f"{name:<28} {oracle.truth}")
