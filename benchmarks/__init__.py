"""Benchmarks: run time next to other libraries, faithfulness, precision, the page. Nothing imports this package."""

import os

# The memory profiler would print log lines into the table; must be set before torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("TQDM_DISABLE", "1")  # grad-cam draws progress bars
