"""Measure how many small faults the tests detect, in half an hour: `python -m tests.support.plant_faults`.

The tree is copied, and one fault at a time is planted in the copy: an operator, a constant or a condition changes, or a
statement is removed. The tests of `make test` that execute the changed line run, fastest first, until the first
failure. coverage.py records in one run of all tests which these are. Tests in other processes (Chromium, commands of an
installed package) are not counted, because coverage.py cannot assign their lines.

    python -m tests.support.plant_faults                    200 faults in explainers/, 100 in saliscope/, seed 0
    python -m tests.support.plant_faults --seed 1 --keep /tmp/faults     uses the lines recorded there, or records them
    python -m tests.support.plant_faults --plant explainers/hooks=30 --tests tests/explainers/hooks     one folder

Each result is printed with the first test that failed. "UNDETECTED" faults need a test, or code that is shorter.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[2]
SECONDS = 240
"""Time limit of the tests of one fault."""
TOO_LONG = "time limit"
CHUNKS = ((0, 30), (30, 300), (300, None))
"""Tests of one line that run together; most faults are detected by the first ones."""
SEPARATE_PROCESSES = (
    "tests/saliscope/browser", "tests/project/test_wheel.py",
    "tests/explainers/call/test_sharded.py", "tests/explainers/hooks/test_training_distributed.py",
)  # fmt: skip
PRELOAD = ("torch", "torchvision", "timm", "transformers", "pandas", "pyarrow", "typer", "fastapi", "scipy.stats")
"""Packages that are imported once, before the processes of the faults are forked."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A changed piece of source text: lines and columns as in `ast`, columns in bytes."""

    path: Path
    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    def apply(self, source: bytes) -> bytes:
        """Return the source with the fault."""
        lines = source.splitlines(keepends=True)
        first, last = lines[self.start[0] - 1], lines[self.end[0] - 1]
        changed = first[: self.start[1]] + self.text.encode() + last[self.end[1] :]
        return b"".join([*lines[: self.start[0] - 1], changed, *lines[self.end[0] :]])


def list_faults(path: Path) -> Iterator[Fault]:
    """Yield all faults that can be planted in the functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    visited: set[ast.AST] = set()
    for function in functions:
        for statement in function.body[ast.get_docstring(function) is not None :]:
            for node in ast.walk(statement):
                if node not in visited:
                    visited.add(node)
                    yield from change(path, node)


def change(path: Path, node: ast.AST) -> Iterator[Fault]:
    """Yield the faults of one node of the syntax tree."""
    new = copy.deepcopy(node)
    if isinstance(new, (ast.BinOp, ast.BoolOp)) and type(new.op) in SWAPS:
        new.op = SWAPS[type(new.op)]()  # type: ignore[assignment]
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in SWAPS:
        new.ops[0] = SWAPS[type(new.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(new, ast.Constant) and isinstance(new.value, (bool, int, float)):
        new.value = (not new.value) if isinstance(new.value, bool) else new.value + 1
    elif isinstance(new, (ast.If, ast.While)):
        yield replace(path, new.test, f"(not ({ast.unparse(new.test)}))")
        return
    elif isinstance(new, (ast.AugAssign, ast.Raise)) or (isinstance(new, ast.Expr) and isinstance(new.value, ast.Call)):
        yield replace(path, new, "pass")
        return
    else:
        return
    yield replace(path, node, f"({ast.unparse(new)})")


def replace(path: Path, node: ast.AST, text: str) -> Fault:
    """Return the fault that replaces a node by a text."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return Fault(path, start, end, text)


def sample(folder: str, count: int, seed: int) -> list[Fault]:
    """Choose faults of a package with a fixed seed; all possible faults are equally likely."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    found = [fault for path in paths if "static" not in path.parts for fault in list_faults(path)]
    return random.Random(seed).sample(found, min(count, len(found)))


class Tests:
    """The tests in copies of the tree: which lines each executes, and how long it takes."""

    def __init__(self, folder: Path, processes: int, paths: list[str]) -> None:
        self.folder, self.processes, self.paths = folder, processes, paths
        self.seconds = dict[str, float]()
        self.trees = [folder / f"tree{number}" for number in range(processes)]
        for tree in self.trees:
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))

    def load(self) -> None:
        """Run the tests once and record the lines that each executes, or use those of an earlier run in the folder."""
        settings, seconds = self.folder / "coveragerc", self.folder / "seconds"
        if not seconds.exists():
            settings.write_text(f"[run]\nsource = explainers,saliscope\ndata_file = {self.folder / 'coverage'}\n")
            command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *self.paths]
            command += ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
            command += ["-p", "tests.support.plant_faults", *(f"--ignore={name}" for name in SEPARATE_PROCESSES)]
            command += ["-n", "auto", "--dist", "loadfile"] if self.processes > 1 else ["-n", "0"]
            environment = os.environ | {"PYTHONPATH": str(self.trees[0]), "DURATIONS": str(seconds)}
            done = subprocess.run(command, cwd=self.trees[0], env=environment, capture_output=True, text=True)
            if done.returncode not in (0, 1):
                raise SystemExit(f"The tests could not run.\n{done.stdout[-3000:]}{done.stderr}")
            # A test that limits the time of a computation may fail while lines are recorded.
            for failed in re.findall("^FAILED (.*)", done.stdout, re.MULTILINE):
                print(f"Left out, because it fails without a fault: {failed}", flush=True)
        self.seconds = json.loads(seconds.read_text())

    def executing(self, path: Path, line: int) -> list[str]:
        """Return the tests that execute a line, fastest first."""
        data = CoverageData(str(self.folder / "coverage"))
        data.read()
        found = data.contexts_by_lineno(str(self.trees[0] / path)).get(line, [])
        return sorted({name.rsplit("|", 1)[0] for name in found} & self.seconds.keys(), key=self.seconds.__getitem__)

    def detect(self, fault: Fault, tree: Path) -> tuple[str, str]:
        """Plant a fault in a copy; return "detected", "UNDETECTED" or "undecided", and a test."""
        relative = fault.path.relative_to(ROOT)
        path = tree / relative
        source = path.read_bytes()
        tests = self.executing(relative, fault.start[0])
        path.write_bytes(fault.apply(source))
        end = time.monotonic() + SECONDS
        try:
            for first, last in CHUNKS:
                failed = run_in_fork(tree, tests[first:last], end - time.monotonic())
                if failed:
                    return ("undecided" if failed == TOO_LONG else "detected"), failed
        finally:
            path.write_bytes(source)
        return "UNDETECTED", "-"


class InOrder:
    """A plugin of pytest that runs tests in a given order."""

    def __init__(self, names: list[str]) -> None:
        self.position = {name: position for position, name in enumerate(names)}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Sort the tests after all other plugins."""
        yield
        items.sort(key=lambda item: self.position.get(item.nodeid, 0))


def run_in_fork(tree: Path, names: list[str], seconds: float) -> str | None:
    """Run tests in a process that already has the packages; return the first that fails, or None."""
    if not names:
        return None
    listed, output = tree.with_suffix(".tests"), tree.with_suffix(".output")
    listed.write_text("\n".join(names))
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        for module in [name for name in sys.modules if name.partition(".")[0] in ("tests", "explainers", "saliscope")]:
            del sys.modules[module]
        os.environ["PYTHONPATH"] = str(tree)
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
        os._exit(pytest.main([f"@{listed}", *options], plugins=[InOrder(names)]))
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TOO_LONG
        time.sleep(0.05)
    if os.waitstatus_to_exitcode(status) in (0, 5):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output.read_text(errors="replace"), re.MULTILINE)
    return failed[1] if failed else "the import"


_durations: dict[str, float] = defaultdict(float)
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the duration of a test; used with `-p tests.support.plant_faults`."""
    _durations[report.nodeid] += report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations of the tests that passed."""
    target = Path(os.environ["DURATIONS"])
    if not hasattr(session.config, "workerinput") and not target.exists():
        target.write_text(json.dumps({name: each for name, each in _durations.items() if name not in _failed}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plant", nargs="+", default=["explainers=200", "saliscope=100"], metavar="FOLDER=COUNT")
    parser.add_argument("--tests", nargs="+", default=[], help="files or folders of tests; without, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", help="keep the recorded lines in this folder, and use those of an earlier run")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    planted = {folder: int(count) for folder, _, count in (each.partition("=") for each in options.plant)}
    faults = [fault for folder, count in planted.items() for fault in sample(folder, count, options.seed)]
    kept = Path(options.keep or tempfile.mkdtemp())
    kept.mkdir(exist_ok=True)
    tests = Tests(kept, options.processes, options.tests)
    tests.load()
    for name in PRELOAD:
        importlib.import_module(name)
    trees = multiprocessing.get_context("fork").SimpleQueue()
    for tree in tests.trees:
        trees.put(tree)
    results: dict[str, int] = defaultdict(int)
    with ProcessPoolExecutor(
        options.processes, multiprocessing.get_context("fork"), initializer=_take_tree, initargs=(tests, trees)
    ) as pool:
        for number, (fault, (result, test)) in enumerate(zip(faults, pool.map(_detect, faults), strict=True), 1):
            results[f"{fault.path.relative_to(ROOT).parts[0]} {result}"] += 1
            line = fault.path.read_text(encoding="utf-8").splitlines()[fault.start[0] - 1].strip()
            place = f"{fault.path.relative_to(ROOT)}:{fault.start[0]}"
            print(f"{number:4} {result} {place}: {line} -> {fault.text[:80]}  [{test}]", flush=True)
    print(f"{len(faults)} faults: {dict(results)}", flush=True)


_process: dict[str, Any] = {}


def _take_tree(tests: Tests, trees: Any) -> None:
    """Give this process its own copy of the tree."""
    _process.update(tests=tests, tree=trees.get())


def _detect(fault: Fault) -> tuple[str, str]:
    return _process["tests"].detect(fault, _process["tree"])


if __name__ == "__main__":
    main()
