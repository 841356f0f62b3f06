"""Settings that must be made before torch is imported.

They prevent threads that compute in turns from slowing each other down, and let all threads share their memory.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from typing import Any

# Each computing thread has its own OpenMP workers. If there are more workers than processors, GNU OpenMP lets them
# sleep between operations, which makes a network 1.5 times slower. A limited spin count lets them wait a bit longer.
os.environ.setdefault("OMP_WAIT_POLICY", "active")
os.environ.setdefault("GOMP_SPINCOUNT", "300000")

# One pool of memory for all threads, before there are threads: what one frees, another can use. With several pools,
# the process keeps about 100 MB more. As in explainers/call/batch_size.py, which is imported later.
if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    ctypes.CDLL(None).mallopt(-8, 1)

spaces: Any
try:
    spaces = importlib.import_module("spaces")  # the shared GPU of a Space; must be imported before torch
except ImportError:
    spaces = None

__all__ = ["spaces"]
