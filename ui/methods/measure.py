"""How long each method takes, in forward passes: `OMP_WAIT_POLICY=passive python -m ui.methods.measure`.

It writes costs.json, which the picker reads for its badges. Each method runs as on the
page, at its defaults, for one photograph on the default network; those that do not apply to it run on a network that
they do apply to. Time is that of the calling thread, which works in every parallel region and sleeps meanwhile where
it waits (hence the variable): what else the machine does hardly counts, so that it is the wall time of an idle one.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui import examples
from ui.methods.costs import FILE

if TYPE_CHECKING:
    import torch

    import explainers

THREADS, SECONDS, QUICK = 2, 90.0, 1.0
"""Threads of torch; the most that a long method gets; below this a method runs three times, and the fastest counts."""

Case = tuple[str, Any, "torch.Tensor", Any]
"""A network's name, the network, its pictures, and the target."""


def on_board() -> Case:
    """The default network and a photograph."""
    import models  # torch takes seconds to start

    model, example = models.load_model("auto"), next(iter(examples.all_examples().values()))
    return model.name, model.network, model.prepare(Image.open(example.path).convert("RGB")), None


@functools.cache
def transformer() -> Case:
    """A vision transformer; how long it takes does not depend on its weights."""
    import torch  # torch takes seconds to start
    from torchvision.models import vit_b_16  # torch takes seconds to start

    return "vit_b_16", vit_b_16(weights=None).eval(), torch.rand(1, 3, 224, 224), 0


@functools.cache
def detector() -> Case:
    """A small object detector, and a box for it to find again."""
    import torch  # torch takes seconds to start
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large  # torch takes seconds to start

    import explainers  # torch takes seconds to start

    network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    box = explainers.BoxScores(torch.tensor([[80.0, 80.0, 240.0, 240.0]]), (1,), 0.0)
    return "ssdlite320_mobilenet_v3_large", network, torch.rand(1, 3, 320, 320), box


def seconds(work: Callable[[], object]) -> float:
    """Of the calling thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def forward(network: Any, images: torch.Tensor) -> float:
    """Seconds of a bare forward pass: the median of 25."""
    import torch  # torch takes seconds to start

    with torch.inference_mode():
        network(images)
        return statistics.median(seconds(lambda: network(images)) for _ in range(25))


def passes(method: explainers.Method, case: Case, unit: float) -> float:
    """The time of a method in forward passes."""
    import explainers  # torch takes seconds to start

    _, network, images, target = case
    options: dict[str, Any] = {"budget": SECONDS} if method.long else {}
    if "auto" in getattr(method.options.get("precision"), "choices", ()):
        options["precision"] = "auto"  # as the page asks for it
    once = functools.partial(explainers.explain, method.name, network, images, target, **options)
    taken = seconds(once)
    if taken < QUICK:
        taken = min(seconds(once) for _ in range(3))
    return taken / unit


def main() -> None:
    """Measure, and write the table."""
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start

    parser = argparse.ArgumentParser(
        prog="python -m ui.methods.measure", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--only", nargs="+", help="these methods alone; the others keep their rows")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    own = on_board()
    unit = forward(*own[1:3])
    table: dict[str, Any] = {"passes": {}, "elsewhere": {}}
    if arguments.only:
        table = json.loads(arguments.out.read_text(encoding="utf-8"))
    table |= {"network": own[0], "threads": THREADS, "forward": round(unit, 5)}
    for method in explainers.METHODS.values():
        if arguments.only and method.name not in arguments.only:
            continue
        case = own
        if method.applies(own[1]):
            case = detector() if method.name == "d_rise" else transformer()
            table["elsewhere"][method.name] = case[0]
        own_unit = unit if case is own else forward(*case[1:3])
        table["passes"][method.name] = float(f"{passes(method, case, own_unit):.3g}")
    arguments.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
