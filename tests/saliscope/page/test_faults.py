"""Every check of a public page notices a planted fault, and ends: `python -m benchmarks.public.faults`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.public import attack
from benchmarks.public.faults import in_decoders, in_pages
from benchmarks.public.faults.__main__ import FAULTS, notice
from tests.saliscope.browser.conftest import chromium

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
QUICK = "decoders that crash"
NAMES = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FAULTS if name != QUICK)]


def test_every_check_has_a_fault() -> None:
    noticing = {fault.command for fault in FAULTS.values()}
    assert noticing == {f"attack {group}" for group in attack.GROUPS} | {"hostile", "load", "soak"}
    assert set(FAULTS) <= {*in_pages.FAULTS, *in_decoders.FAULTS}


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_noticed(name: str) -> None:
    if FAULTS[name].command == "attack scripts" and not chromium():
        pytest.skip("Chromium is not installed.")
    assert notice(name) != []
    assert name != QUICK or notice(name, control=True) == [], "without the fault"


def test_a_command_that_does_not_end_is_ended_with_its_processes() -> None:
    code = """
import subprocess, time
from benchmarks.public import processes
with processes.ends_within(0.01):
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    child, line = found.stdout.split("\n", 1)
    assert found.returncode == 1 and "not ended within 0.01 minutes" in line
    status, end = Path(f"/proc/{int(child)}/status"), time.monotonic() + 10
    while status.exists() and "State:\tZ" not in status.read_text(encoding="utf-8"):  # a zombie has ended too
        assert time.monotonic() < end, "the child still runs"
        time.sleep(0.05)
