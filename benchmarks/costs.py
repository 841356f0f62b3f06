"""Measure the cost of each method in forward passes.

`OMP_WAIT_POLICY=passive python -m benchmarks.costs` writes costs.json, which the list of methods uses for its badges;
`--only NAME` measures only these methods and keeps the other rows, and `--out FILE` writes another file.
Each method runs as on the page, with default options, for one image on the default network. Methods that do not support
this network run on another one. The time is that of the calling thread, which takes part in every parallel region and
sleeps while it waits (because of the variable), so other load on the machine hardly affects it.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torchvision.models import get_model

import explainers
from benchmarks import options
from benchmarks.gallery import open_image
from saliscope.compute.methods.costs import FILE
from saliscope.zoo import load_model

THREADS, SECONDS, QUICK = 2, 90.0, 1.0
"""Threads of torch; time limit of long methods; faster methods than `QUICK` run three times, and the minimum counts."""

Case = tuple[str, Any, torch.Tensor, Any]
"""The name of a network, the network, its input, and the target."""


@functools.cache
def other_case(name: str) -> Case:
    """Return a network whose run time does not depend on the weights: a vision transformer, or a small detector."""
    if name == "vit_b_16":
        return name, get_model(name, weights=None).eval(), torch.rand(1, 3, 224, 224), 0
    box = explainers.BoxScores(torch.tensor([[80.0, 80.0, 240.0, 240.0]]), (1,), 0.0)
    return name, get_model(name, weights=None, weights_backbone=None).eval(), torch.rand(1, 3, 320, 320), box


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of `work` in the calling thread."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def forward(network: Any, images: torch.Tensor) -> float:
    """Return the median time of 25 forward passes."""
    with torch.inference_mode():
        network(images)
        return statistics.median(seconds(lambda: network(images)) for _ in range(25))


def passes(method: explainers.Method, case: Case, unit: float) -> float:
    """Return the time of a method in forward passes."""
    _, network, images, target = case
    options: dict[str, Any] = {"budget": SECONDS} if method.long else {}
    if "auto" in getattr(method.options.get("precision"), "choices", ()):
        options["precision"] = "auto"  # as on the page
    run = functools.partial(explainers.explain, method.name, network, images, target, **options)
    elapsed = seconds(run)
    return (min(seconds(run) for _ in range(3)) if elapsed < QUICK else elapsed) / unit


def main() -> None:
    """Measure the methods and write the table."""
    arguments = options(__doc__, out=FILE, only=[str])
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    model = load_model("auto")
    default: Case = model.name, model.network, model.prepare(open_image("dog")), None
    unit = forward(*default[1:3])
    table: dict[str, Any] = {"passes": {}, "elsewhere": {}}
    if arguments.only:
        table = json.loads(arguments.out.read_text(encoding="utf-8"))
    table |= {"network": default[0], "threads": THREADS, "forward": round(unit, 5)}
    for method in explainers.METHODS.values():
        if arguments.only and method.name not in arguments.only:
            continue
        case = default
        if method.applies(default[1]):
            case = other_case("ssdlite320_mobilenet_v3_large" if method.name == "d_rise" else "vit_b_16")
            table["elsewhere"][method.name] = case[0]
        case_unit = unit if case is default else forward(*case[1:3])
        table["passes"][method.name] = float(f"{passes(method, case, case_unit):.3g}")
    arguments.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
