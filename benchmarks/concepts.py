"""`python -m benchmarks.concepts --photos FOLDER`: feature visualization and concepts on the built-in network.

FOLDER contains one folder for each class, named by its WordNet id, and `--classes FILE` the names of the ids (a table
with tabs, the name of the network's class first). The table compares each figure with its goal. The concepts are fitted
to `--images`, and measured on `--others`.

python -m benchmarks.concepts --photos val --classes classes.tsv --images 2000
python -m benchmarks.concepts --only classes tcav                  # these need no photos
"""

from __future__ import annotations

import contextlib
import csv
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import explainers
from benchmarks import options
from benchmarks.faithfulness.measure import prepare
from explainers.students_t import t_tail
from saliscope.zoo import Model, load_model
from tests.explainers.concepts.planted import PARTS as PLANTED
from tests.explainers.concepts.planted import planted_images, planted_network

MEAN, STD, SIDE = 127 / 255, 128 / 255, 224
LAYER, CONCEPTS, ACTIVE, EPOCHS = "stages.6", 1024, 192, 24
VISUALIZED = {"classes": (130, 281, 945), "units": ((LAYER, 5), (LAYER, 77), ("stages.4", 20))}
OPTIONS = {"mean": MEAN, "std": STD, "size": (SIDE, SIDE), "steps": 96}
CLASSES, BATCH = 50, 10
"""Random classes whose images are created, and images that are optimized together."""
RANDOM_CONCEPTS = 200


def read(model: Model, paths: list[Path]) -> Tensor:
    """Return images [N, 3, SIDE, SIDE], normalized for the network."""
    return torch.cat([prepare(model, Image.open(path).convert("RGB")) for path in paths])


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
    options = {"active": ACTIVE, "epochs": EPOCHS, "progress": lambda _: times.append(time.monotonic())}
    found = explainers.find_concepts(net, train, LAYER, CONCEPTS, "sae", **options)
    fit = times[len(times) - found.steps :]
    epoch = (fit[-1] - fit[0]) / EPOCHS
    name = f"seconds of an epoch of {len(train):,} images, after {fit[0] - start:.0f} s for the features"
    yield name, "60", f"{epoch:.1f}"
    yield "unexplained variance, images of the fit", "0.2", f"{found.error:.3f}"
    yield f"unexplained variance, {len(test):,} other images", "0.2", f"{found.unexplained(test):.3f}"
    rebuild = lambda x: found.decode(found.encode(x))  # noqa: E731
    results = [explainers.intervene(net, part, LAYER, value=rebuild) for part in test.split(32)]
    predicted = [torch.cat([getattr(each, when).argmax(1) for each in results]) for when in ("before", "after")]
    before, after = (100 * float((each == labels)[labels >= 0].float().mean()) for each in predicted)
    yield f"points of accuracy lost by the reconstruction, of {before:.1f}%", "1", f"{before - after:.2f}"


def removal(net: nn.Module, train: Tensor, test: Tensor, _: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield the correlation of predicted and measured effects of the concepts of each method."""
    for method, k in (("nmf", 20), ("sae", 128), ("pca", 20)):
        found = explainers.find_concepts(net, train[:200], LAYER, k, method)
        both = torch.stack([found.effects(test[:16]).flatten(), found.predicted_effects(test[:16]).flatten()])
        correlation = float(torch.corrcoef(both)[0, 1])
        yield f"correlation of predicted and measured effects, {method}", "0.8", f"{correlation:.3f}"


def synthetic(net: nn.Module, _: Tensor, test: Tensor, __: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield the scores of synthetic images, compared with images of the folder."""
    for image in ("fourier", "maco"):
        shares = []
        for layer, channel in VISUALIZED["units"]:
            target = explainers.unit(layer, channel)
            own = explainers.feature_visualization(net, target, image=image, **OPTIONS).activations
            maps = (explainers.feature_maps(net, x, layer=layer)[:, channel] for x in test.split(32))
            others = torch.cat([each.mean((1, 2)) for each in maps])
            shares.append(float((others < own).float().mean()))
        least = 100 * min(shares)
        name = f"{image}: % of {len(test):,} images that excite their unit less, least of {len(shares)} units"
        yield name, "99", f"{least:.1f}"
        found = [share for index in VISUALIZED["classes"] for share in probabilities(net, [index], image)]
        yield f"{image}: probability of the class, least of {len(found)}", "0.9", f"{min(found):.4f}"


def probabilities(net: nn.Module, classes: list[int], image: str) -> list[float]:
    """Return the probabilities of classes in the images that are created for them."""
    images = explainers.feature_visualization(net, classes, image=image, images=len(classes), **OPTIONS).images
    return [float(row[index]) for row, index in zip(net((images - MEAN) / STD).softmax(1), classes, strict=True)]


def classes(net: nn.Module, _: Tensor, __: Tensor, ___: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield the probabilities of random classes in the images that are created for them."""
    chosen = sorted(random.Random(0).sample(range(1000), CLASSES))
    for image in ("fourier", "maco"):
        start, found = time.monotonic(), []
        for part in (chosen[at : at + BATCH] for at in range(0, CLASSES, BATCH)):
            found += probabilities(net, part, image)
        seconds = (time.monotonic() - start) / CLASSES
        low = [f"{index} ({share:.2f})" for index, share in zip(chosen, found, strict=True) if share < 0.9]
        name = f"{image}: images of {CLASSES} random classes with a probability of at least 0.9, {seconds:.1f} s each"
        yield name, str(CLASSES), f"{CLASSES - len(low)}" + (f"; below: {', '.join(low)}" if low else "")


def tcav(_: nn.Module, __: Tensor, ___: Tensor, ____: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield how often `tcav` finds random sets of images, and sets with a planted part, on the network of the tests."""

    def test(concept: int | None, part: int, seed: int) -> explainers.Tcav | None:
        """Return the result for images of a concept, None if it is refused."""
        images, others = planted_images(20, seed, always=concept)[0], planted_images(400, 10**6 + seed)[0]
        given = {"concept_images": images, "random_images": others, "layer": "features"}
        with contextlib.suppress(explainers.BadOption):
            return explainers.tcav(planted_network(), of_class, part, **given)
        return None

    wrong = found = refused = unlikely = 0
    for part in range(PLANTED):
        of_class = planted_images(30, 7, always=part)[0]
        first = 1000 * (part + 1)
        for seed in range(first, first + RANDOM_CONCEPTS // PLANTED):
            result = test(None, part, seed)
            refused, wrong = refused + (result is None), wrong + (result is not None and result.is_significant)
        for seed in range(first + 500, first + 502):
            result = test(part, part, seed)
            found += result is not None and result.is_significant
        unlikely += 0 if result is None else sum(p < 0.05 for p in p_values(result.random))
    yield f"tcav: significant of {RANDOM_CONCEPTS} random concepts; it refused {refused} of them", "10", str(wrong)
    yield f"tcav: of {RANDOM_CONCEPTS} random sets without a refusal, with p < 0.05", "10", str(unlikely)
    yield f"tcav: significant of {2 * PLANTED} planted concepts", str(2 * PLANTED), str(found)


def p_values(sensitivities: Tensor) -> list[float]:
    """Return the p-value of each random set, compared with the others as `tcav` compares a concept."""
    found = []
    for n, own in enumerate(sensitivities.tolist()):
        others = torch.cat([sensitivities[:n], sensitivities[n + 1 :]])
        spread = float(others.std()) * (1 + 1 / len(others)) ** 0.5
        found.append(t_tail((own - float(others.mean())) / spread, len(others) - 1))
    return found


PARTS = {"autoencoder": autoencoder, "removal": removal, "synthetic": synthetic, "classes": classes, "tcav": tcav}
WITH_PHOTOS = {"autoencoder", "removal", "synthetic"}


def main() -> None:
    given = options(__doc__, photos=Path, classes=Path, images=2000, others=1000, only=tuple(PARTS))
    model = load_model()
    net, images, others, labels = model.network, torch.zeros(0), torch.zeros(0), torch.zeros(0)
    if WITH_PHOTOS & set(given.only):
        if not (given.photos and given.classes):
            sys.exit(f"{', '.join(sorted(WITH_PHOTOS))} need --photos and --classes")
        paths = sorted(given.photos.rglob("*.JPEG"))
        random.Random(0).shuffle(paths)
        train, rest = paths[: given.images], paths[given.images : given.images + given.others]
        images, others, labels = read(model, train), read(model, rest), labels_of(rest, given.classes, model.labels)
    print("| figure | goal | measured |\n|---|---|---|", flush=True)
    for part in given.only:
        for name, goal, measured in PARTS[part](net, images, others, labels):
            print(f"| {name} | {goal} | {measured} |", flush=True)


if __name__ == "__main__":
    main()
