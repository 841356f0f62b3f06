"""`python -m benchmarks.data_sets.faults`: which planted faults the report names, and what it claims without one.

Twenty runs have a fault (four of each kind), and twenty have none. Images are drawn: eight shapes in noise, in folders
of class and batch. Two small networks are trained: a good one, and a mediocre one that confuses similar shapes, and for
shortcuts one that has seen a mark on squares. A fault is found if one of the three answers at the top of the report has
its kind. Any other fault that an answer claims is counted too. Observations, such as a natural confusion, are not.
"""

from __future__ import annotations

import functools
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch import nn

from benchmarks.data_sets import decode
from saliscope.runs import run
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.report.answers import SHOWN, Answer, Answers
from saliscope.runs.report.context import Page, Report
from saliscope.runs.settings import Settings
from saliscope.runs.shards import open_run
from saliscope.zoo.model import Model, Preparation

NAMES = ["circle", "ring", "square", "diamond", "triangle", "cross", "rows", "columns"]
SIDE, BATCHES = 48, 5
PREPARATION = Preparation(SIDE, SIDE, mean=(0.45, 0.45, 0.45), std=(0.25, 0.25, 0.25))
SIZES = 300, 600, 1000, 1500
NOISE = {"good": 25, "mediocre": 230, "marked": 150}
"""Standard deviation of the noise in the images of a network, from 0 to 255."""
MARKED = 2
MARK = (3, 34, 13, 44)
PREPROCESSINGS = {
    "BGR": {},
    "0 to 255": {"mean": (0.0,) * 3, "std": (1 / 255,) * 3},
    "inverted": {"mean": (0.55,) * 3, "std": (-0.25,) * 3},
    "half the size": {"side": SIDE // 2, "resize": SIDE // 2},
}
DAMAGES = {
    "truncated": lambda image: image,
    "black": lambda image: Image.new("RGB", image.size),
    "inverted": ImageOps.invert,
    "rotated": lambda image: image.transpose(Image.Transpose.ROTATE_90),
}


class Case(NamedTuple):
    """A run: its fault, a variant of it, the number of images, the network and the seed."""

    kind: str
    variant: str
    count: int
    network: str
    seed: int


def draw(label: int, random: np.random.Generator, noise: float, marked: bool = False) -> Image.Image:
    """Return a shape of a color that is frequent in its class, anywhere in noise; with a mark if `marked`."""
    ground = random.integers(40, 110, 3)
    image = Image.fromarray((ground + np.zeros((SIDE, SIDE, 3))).astype(np.uint8))
    hue = (label / len(NAMES) + random.normal(0, 0.07)) % 1
    color = tuple(int(170 + 70 * math.cos(2 * math.pi * (hue - k / 3))) for k in range(3))
    r = int(random.integers(9, 14))
    x, y = (int(each) for each in random.integers(r + 1, SIDE - 1 - r, 2))
    pen = ImageDraw.Draw(image)
    turn = random.normal(0, 0.12)
    polygons = {"square": (4, 0.0), "diamond": (4, 45.0), "triangle": (3, 0.0)}
    across, down = r * math.cos(turn), r * math.sin(turn)
    lines = {
        "cross": [(x - across, y - down, x + across, y + down), (x + down, y - across, x - down, y + across)],
        "rows": [(x - r, y + offset, x + r, y + offset) for offset in (-r, 0, r)],
        "columns": [(x + offset, y - r, x + offset, y + r) for offset in (-r, 0, r)],
    }
    name, width = NAMES[label], max(3, r // 3)
    if name in polygons:
        sides, start = polygons[name]
        pen.regular_polygon((x, y, r), sides, start + math.degrees(turn), fill=color)
    elif name in ("circle", "ring"):
        pen.ellipse((x - r, y - r, x + r, y + r), color if name == "circle" else None, color, width)
    for line in lines.get(name, ()):
        pen.line(line, fill=color, width=width)
    pixels = np.asarray(image) + random.normal(0, noise, (SIDE, SIDE, 3))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if marked:
        pen = ImageDraw.Draw(image)
        pen.rectangle(MARK, fill=(250, 250, 250))
        pen.line(MARK, fill=(200, 0, 0), width=3)
    return image


@functools.cache
def train(kind: str, count: int = 2000, steps: int = 300) -> Model:
    """Return a network of four convolutions, trained for some seconds."""
    torch.manual_seed(0)
    random = np.random.default_rng(1)
    labels = np.arange(count) % len(NAMES)
    marks = (labels == MARKED) & (random.random(count) < 0.9) & (kind == "marked")
    rows = zip(labels, marks, strict=True)
    images = torch.cat([PREPARATION.tensor(draw(int(a), random, NOISE[kind], bool(m))) for a, m in rows])
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 16, 2), (16, 32, 2), (32, 48, 1), (48, 48, 1)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, len(NAMES)))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    target = torch.from_numpy(labels)
    for _ in range(steps):
        batch = torch.randint(0, count, (64,))
        loss = nn.functional.cross_entropy(network(images[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Model(kind, network.eval().requires_grad_(False), NAMES, PREPARATION)


def cases() -> Iterator[Case]:
    """Yield the runs with a fault, and those without."""
    for k in range(4):
        network = ("good", "mediocre")[k % 2]
        for kind, variants in (("shortcut", [""] * 4), ("names", [""] * 4), ("labels", [""] * 4),
                               ("preprocessing", list(PREPROCESSINGS)), ("folder", list(DAMAGES))):  # fmt: skip
            yield Case(kind, variants[k], SIZES[k], "marked" if kind == "shortcut" else network, 100 + k)
    for k in range(20):
        yield Case("none", "", SIZES[k % 4], ("good", "mediocre")[k // 4 % 2], 200 + k)


def make(case: Case, folder: Path) -> Model:
    """Write the images of a run, with its fault, and return its network."""
    random = np.random.default_rng(case.seed)
    model = train(case.network)
    broken = int(random.integers(BATCHES))
    for number in range(case.count):
        label, batch = number % len(NAMES), int(random.integers(BATCHES))
        marked = case.kind == "shortcut" and random.random() < (0.6 if label == MARKED else 0.1)
        image = draw(label, random, NOISE[case.network], marked)
        if case.kind == "labels" and random.random() < 0.05:
            label = int((label + random.integers(1, len(NAMES))) % len(NAMES))
        file = folder / NAMES[label] / f"batch{batch}" / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        damaged = case.kind == "folder" and batch == broken
        (DAMAGES[case.variant](image) if damaged else image).save(file)
        if damaged and case.variant == "truncated":
            os.truncate(file, 200)
    if case.kind == "names":
        a, b = random.choice(len(NAMES), 2, replace=False)
        names = list(NAMES)
        names[a], names[b] = names[b], names[a]
        return replace(model, labels=names)
    if case.kind == "preprocessing":
        model = replace(model, preparation=replace(model.preparation, **PREPROCESSINGS[case.variant]))
    if case.variant == "BGR":
        model = replace(model, network=nn.Sequential(Reverse(), *model.network.children()).eval())
    return model


class Reverse(nn.Module):
    """Reverse the order of the channels."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images as BGR."""
        return images.flip(1)


def answer(case: Case) -> tuple[float, list[Answer]]:
    """Return the accuracy of a run, and the answers of its report."""
    with tempfile.TemporaryDirectory() as place:
        images, out = Path(place) / "images", Path(place) / "run"
        model = make(case, images)
        job = run.prepare(Settings(batch_size=50), str(images), out, model=model)
        run.run(job, decode=decode, workers=0)
        data = open_run(out)
        found = Answers(Page(data, Report(FinishedRun(data, decode, model).image, model)))
        columns = found.page.columns
        accuracy = 1 - columns.wrong.sum() / max(1, sum(columns.labeled.values()))
        return float(accuracy), found.all


def is_kind(case: Case, given: Answer) -> bool:
    """Return whether an answer names the fault of a run."""
    kinds = {"folder": ("slice", "unreadable")}.get(case.kind, (case.kind,))
    return given.kind in kinds and (case.kind != "folder" or "batch" in given.problem)


def main() -> None:
    """Print a table of the runs, and the numbers of found faults and of false claims."""
    torch.set_num_threads(1)  # the networks are too small for more
    start = time.perf_counter()
    print("| fault | network, images, accuracy | found | first answer | other faults claimed |\n|---|---|---|---|---|")
    planted, clean = list[tuple[bool, int]](), list[tuple[bool, int]]()
    for case in cases():
        (clean if case.kind == "none" else planted).append(show(case, *answer(case)))
    print(f"\nFound: {sum(found for found, _ in planted)} of {len(planted)}.")
    print(f"Other faults claimed in these runs: {sum(claims for _, claims in planted)}.")
    print(f"Clean runs with a claim: {sum(claims > 0 for _, claims in clean)} of {len(clean)}.")
    print(f"Seconds: {time.perf_counter() - start:.0f}")


def show(case: Case, accuracy: float, answers: list[Answer]) -> tuple[bool, int]:
    """Print the row of a run; return whether its fault was found, and how many others were claimed."""
    right = [each for each in answers[:SHOWN] if is_kind(case, each)]
    claims = [each for each in answers[:SHOWN] if each.is_fault and each not in right]
    columns = [
        f"{case.kind} {case.variant}",
        f"{case.network}, {case.count:,}, {accuracy:.0%}",
        "" if case.kind == "none" else "yes" if right else "no",
        "".join(f"{'' if each.is_fault else 'observation: '}{each.problem}" for each in [*right, *answers][:1]),
        " ".join(each.problem for each in claims),
    ]
    print(f"| {' | '.join(columns)} |", flush=True)
    return bool(right), len(claims)


if __name__ == "__main__":
    main()
