"""`python -m benchmarks.concepts --photos FOLDER`: feature visualization and concepts on the built-in network.

FOLDER contains one folder for each class, named by its WordNet id, and `--classes FILE` the names of the ids (a table
with tabs, the name of the network's class first). The table compares each figure with its goal.

python -m benchmarks.concepts --photos val --classes classes.tsv --images 2000
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import explainers
from saliscope.zoo import load_model

MEAN, STD, SIDE = 127 / 255, 128 / 255, 224
LAYER, CONCEPTS, ACTIVE, EPOCHS = "stages.6", 1024, 64, 8
VISUALIZED = {"classes": (130, 281, 945), "units": ((LAYER, 5), (LAYER, 77), ("stages.4", 20))}
STEPS = 96


def read(paths: list[Path]) -> Tensor:
    """Return images [N, 3, SIDE, SIDE], normalized for the network."""
    found = []
    for path in paths:
        with Image.open(path) as image:
            pixels = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        values = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3)
        found.append((values.movedim(-1, 0) / 255 - MEAN) / STD)
    return torch.stack(found)


def labels_of(paths: list[Path], table: Path, names: list[str]) -> Tensor:
    """Return the class of each path by its folder, or -1 if the network has no class of that name."""
    with table.open(newline="") as file:
        known = {row[0]: row[1].split(",")[0].strip().lower() for row in csv.reader(file, delimiter="\t")}
    classes = {name.lower(): index for index, name in enumerate(names)}
    return torch.tensor([classes.get(known.get(path.parent.name, ""), -1) for path in paths])


def autoencoder(net: nn.Module, train: Tensor, test: Tensor, labels: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield what a sparse autoencoder keeps of the network: name, goal, measured."""
    times: list[float] = []
    start = time.monotonic()
    found = explainers.find_concepts(
        net,
        train,
        LAYER,
        CONCEPTS,
        "sae",
        active=ACTIVE,
        epochs=EPOCHS,
        progress=lambda _: times.append(time.monotonic()),
    )
    fit = times[len(times) - found.steps :]
    epoch = (fit[-1] - fit[0]) / EPOCHS
    yield (
        f"seconds of an epoch of {len(train):,} images, after {fit[0] - start:.0f} s for the features",
        "60",
        f"{epoch:.1f}",
    )
    yield "unexplained variance, images of the fit", "0.2", f"{found.error:.3f}"
    yield f"unexplained variance, {len(test):,} other images", "0.2", f"{found.unexplained(test):.3f}"
    before, after = [], []
    for part in test.split(32):
        result = explainers.intervene(net, part, LAYER, value=lambda x: found.decode(found.encode(x)))
        before.append(result.before.argmax(1)), after.append(result.after.argmax(1))
    one, other = (torch.cat(each)[labels >= 0] == labels[labels >= 0] for each in (before, after))
    lost = 100 * float(one.float().mean() - other.float().mean())
    yield (
        f"points of accuracy lost by the reconstruction, of {100 * float(one.float().mean()):.1f}%",
        "1",
        f"{lost:.2f}",
    )


def removal(net: nn.Module, train: Tensor, test: Tensor, _: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield the correlation of predicted and measured effects of the concepts of each method."""
    for method, k in (("nmf", 20), ("sae", 128), ("pca", 20)):
        found = explainers.find_concepts(net, train[:200], LAYER, k, method)
        both = torch.stack([found.effects(test[:16]).flatten(), found.predicted_effects(test[:16]).flatten()])
        correlation = float(torch.corrcoef(both)[0, 1])
        yield f"correlation of predicted and measured effects, {method}", "0.8", f"{correlation:.3f}"


def synthetic(net: nn.Module, _: Tensor, test: Tensor, __: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield the scores of synthetic images, compared with images of the folder."""
    options = {"mean": MEAN, "std": STD, "size": (SIDE, SIDE), "steps": STEPS}
    for image in ("fourier", "maco"):
        shares = []
        for layer, channel in VISUALIZED["units"]:
            target = explainers.unit(layer, channel)
            own = explainers.feature_visualization(net, target, image=image, **options).activations
            others = torch.cat(
                [explainers.feature_maps(net, x, layer=layer)[:, channel].mean((1, 2)) for x in test.split(32)]
            )
            shares.append(float((others < own).float().mean()))
        least = 100 * min(shares)
        yield (
            f"{image}: % of {len(test):,} images that excite their unit less, least of {len(shares)} units",
            "99",
            f"{least:.1f}",
        )
        probabilities = []
        for index in VISUALIZED["classes"]:
            found = explainers.feature_visualization(net, index, image=image, **options)
            probabilities.append(float(net((found.images - MEAN) / STD).softmax(1)[0, index]))
        yield f"{image}: probability of the class, least of {len(probabilities)}", "0.9", f"{min(probabilities):.4f}"


PARTS = {"autoencoder": autoencoder, "removal": removal, "synthetic": synthetic}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--classes", type=Path, required=True)
    parser.add_argument("--images", type=int, default=2000, help="images of the fit")
    parser.add_argument("--others", type=int, default=1000, help="images on which it is measured")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    model = load_model()
    net = model.network
    paths = sorted(given.photos.rglob("*.JPEG"))
    random.Random(0).shuffle(paths)
    train, rest = paths[: given.images], paths[given.images : given.images + given.others]
    images, others = read(train), read(rest)
    print("| figure | goal | measured |\n|---|---|---|", flush=True)
    labels = labels_of(rest, given.classes, model.labels)
    for part in given.only:
        rows = PARTS[part](net, images, others, labels)
        for name, goal, measured in rows:
            print(f"| {name} | {goal} | {measured} |", flush=True)


if __name__ == "__main__":
    main()
