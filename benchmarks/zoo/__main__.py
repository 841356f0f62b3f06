"""`python -m benchmarks.zoo`: every network with every kind of method; each cell is correct or has a clear error.

python -m benchmarks.zoo                      all, in 20 minutes on two idle cores; writes docs/networks.md
python -m benchmarks.zoo --only "swin|vit"    only networks whose name matches; writes no page
python -m benchmarks.zoo --checks layout lrp  some checks

`--workers` is the number of processes.

The exit status is 1 if any cell is wrong or a crash, whose trace follows its row.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from pathlib import Path

from benchmarks import options

PAGE = Path(__file__).resolve().parents[2] / "docs" / "networks.md"


def main() -> int:
    """Run the checks, print each row when it is done, and write the page."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # torch and the other packages read the environment when they are imported.
    from benchmarks.zoo.attributions import CHECKS
    from benchmarks.zoo.networks import networks
    from benchmarks.zoo.runner import Limits, examine_all, summary, write

    chosen = options(__doc__, only="", checks=tuple(CHECKS), workers=2)
    warnings.filterwarnings("ignore")
    detection, segmentation = "torchvision.models.detection", "torchvision.models.segmentation"
    for name in (detection, segmentation, "timm", "transformers", "segmentation_models_pytorch"):
        importlib.import_module(name)  # once, before the processes fork
    found = [network for network in networks() if re.search(chosen.only, network.name)]
    rows = []
    for row in examine_all(found, chosen.checks, chosen.workers, Limits()):
        rows.append(row)
        size = "{} × {}".format(*row.size)
        print(f"{row.verdict:8}{row.check:21}{row.network}, {size}: {row.words[:300]} ({row.seconds} s)", flush=True)
        print(row.trace if row.verdict == "crash" else "", end="")
    print(f"{len(found)} networks, {len(rows)} cells: {summary(rows)}")
    if not chosen.only and len(chosen.checks) == len(CHECKS):
        write(rows, PAGE)
    return int(any(row.verdict in ("wrong", "crash") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
