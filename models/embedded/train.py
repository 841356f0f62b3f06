"""Train the embedded network: `python -m models.embedded.train --data FOLDER`.

FOLDER holds `train/<wnid>/*.JPEG`, `val/<wnid>/*.JPEG` and `classes.tsv` (WordNet id, names) of Tiny ImageNet.
A checkpoint is written after every epoch, and the same command goes on from it. A resumed run draws the same random
numbers as an uninterrupted one: those of an epoch come from a generator of its own, made from the seed. Nothing here is
needed to use the network.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from models.embedded.network import MEAN, SIDE, STD, build

HERE = Path(__file__).parent

LEFT_OUT = frozenset(
    # Black widow, centipede, gazelle, bighorn, barrel, bathtub, binoculars, crane, dam, dining table, dumbbell,
    # freight car, frying pan, obelisk, organ, rocking chair, remote control, rugby ball, water tower, wok, plate:
    # seldom the subject of a photograph, or named by what lies on them.
    """n01774384 n01784675 n02423022 n02415577 n02795169 n02808440 n02841315 n03126707 n03160309 n03201208 n03255030
    n03393912 n03400231 n03837869 n03854065 n04099969 n04074963 n04118538 n04562935 n04596742 n07579787""".split()
)


class Phase(NamedTuple):
    """Some epochs at one picture size; the learning rate runs linearly from `start` to `end`."""

    side: int
    epochs: int
    start: float
    end: float
    mixed: float
    """Share of the batches that are mixed pairwise (mixup)."""
    smallest: float
    """Area of the smallest random crop, as a share of the picture."""


# Small pictures first: most of what is learnt early does not need the detail, and a step costs a quarter. Random crops
# show objects larger than they are in whole pictures, so training ends below the side that is used afterwards
# (Touvron et al. 2019, arXiv:1906.06423), and its last epochs see nearly whole pictures, as they will be used.
PHASES = (
    Phase(32, 2, 0.02, 0.20, 0.0, 0.35),
    Phase(32, 5, 0.20, 0.20, 0.3, 0.35),
    Phase(40, 7, 0.20, 0.12, 0.3, 0.35),
    Phase(48, 6, 0.12, 0.03, 0.3, 0.35),
    Phase(56, 3, 0.03, 0.00, 0.0, 0.60),
)
BATCH = 128
SMOOTHING = 0.1
MIX = 0.2
AVERAGE = 0.998
"""Share of the averaged weights that one step keeps."""


def classes(folder: Path) -> list[tuple[str, str]]:
    """WordNet id and first name of every class kept, in the order of the logits."""
    rows = [line.split("\t") for line in (folder / "classes.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    return [(wnid, names.split(",")[0]) for wnid, names in rows if wnid not in LEFT_OUT]


def pictures(folder: Path, wnids: list[str]) -> tuple[Tensor, Tensor]:
    """All pictures below `folder` as uint8 [M, 3, 64, 64] and their class indices [M]."""
    files = [(path, index) for index, wnid in enumerate(wnids) for path in sorted((folder / wnid).glob("*.JPEG"))]
    stack = torch.empty(len(files), 3, SIDE, SIDE, dtype=torch.uint8)
    for row, (path, _) in enumerate(files):
        data = bytearray(Image.open(path).convert("RGB").tobytes())
        stack[row] = torch.frombuffer(data, dtype=torch.uint8).view(SIDE, SIDE, 3).permute(2, 0, 1)
    return stack, torch.tensor([index for _, index in files])


def normalise(batch: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] -> the network's input, channels last."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    return ((batch / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def random_crops(batch: Tensor, phase: Phase, generator: torch.Generator) -> Tensor:
    """Random resized crops (from the smallest area to the whole, sides 3:4 to 4:3) with flips, in one `grid_sample`."""

    def draw(low: float, high: float) -> Tensor:
        return torch.rand(len(batch), generator=generator) * (high - low) + low

    size, ratio = draw(phase.smallest, 1.0).sqrt(), draw(-0.288, 0.288).div(2).exp()
    width, height = (size * ratio).clamp(max=1), (size / ratio).clamp(max=1)
    left, top = (1 - width) * draw(-1, 1), (1 - height) * draw(-1, 1)
    flip = draw(-1, 1).sign()
    zero = torch.zeros_like(left)
    boxes = torch.stack([torch.stack([width * flip, zero, left], 1), torch.stack([zero, height, top], 1)], 1)
    grid = F.affine_grid(boxes, [len(batch), 3, phase.side, phase.side], align_corners=False)
    return F.grid_sample(batch, grid, padding_mode="reflection", align_corners=False)


class Run:
    """Everything that changes while training, and its checkpoint."""

    def __init__(self, count: int, seed: int, checkpoint: Path) -> None:
        torch.manual_seed(seed)
        self.seed, self.checkpoint, self.epoch = seed, checkpoint, 0
        self.network = build(count).to(memory_format=torch.channels_last)
        self.average = torch.optim.swa_utils.AveragedModel(self.network, avg_fn=self.blend, use_buffers=True)
        decayed = [p for p in self.network.parameters() if p.ndim > 1]
        others = [p for p in self.network.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
        if checkpoint.exists():
            self.restore()

    @staticmethod
    def blend(kept: Tensor, new: Tensor, steps: Tensor | int) -> Tensor:
        # Early averages forget quickly, or they would drag the random start along.
        share = min(AVERAGE, (1 + int(steps)) / (10 + int(steps)))
        return kept + (1 - share) * (new - kept) if kept.is_floating_point() else new

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {"network": self.network, "average": self.average, "optimiser": self.optimiser}

    def save(self) -> None:
        state = {name: part.state_dict() for name, part in self.parts().items()} | {"epoch": self.epoch}
        whole = self.checkpoint.with_suffix(".part")
        torch.save(state, whole)
        whole.replace(self.checkpoint)

    def restore(self) -> None:
        state = torch.load(self.checkpoint, weights_only=True)
        self.epoch = state["epoch"]
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    def train_epoch(self, phase: Phase, within: int, data: Tensor, labels: Tensor) -> float:
        """One pass over the data; the mean loss."""
        generator = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        order = torch.randperm(len(data), generator=generator).split(BATCH)[: len(data) // BATCH]
        self.network.train()
        total = 0.0
        for step, rows in enumerate(order):
            share = (within + step / len(order)) / phase.epochs
            for group in self.optimiser.param_groups:
                group["lr"] = phase.start + (phase.end - phase.start) * share
            x, y = random_crops(normalise(data[rows]), phase, generator), labels[rows]
            other, weight = y, 1.0
            if torch.rand((), generator=generator) < phase.mixed:
                weight = 1 - MIX * torch.rand((), generator=generator).item()
                x, other = x * weight + x.flip(0) * (1 - weight), y.flip(0)
            x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                scores = self.network(x)
            scores = scores.float()
            loss = weight * F.cross_entropy(scores, y, label_smoothing=SMOOTHING)
            if weight < 1:
                loss = loss + (1 - weight) * F.cross_entropy(scores, other, label_smoothing=SMOOTHING)
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()
            self.average.update_parameters(self.network)
            total += loss.item()
        return total / len(order)


@torch.no_grad()
def renew_statistics(network: nn.Module, data: Tensor) -> None:
    """Take the batch-norm statistics anew, from whole pictures as they will be used.

    Those of averaged weights are not the average of statistics (Izmailov et al. 2018, arXiv:1803.05407).
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the plain mean over all batches
    network.train()
    with torch.autocast("cpu", torch.bfloat16):
        for batch in data[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:10_240]].split(256):
            network(normalise(batch))


@torch.inference_mode()
def accuracy(network: nn.Module, data: Tensor, labels: Tensor) -> tuple[float, float]:
    """Top-1 and top-5 accuracy on whole pictures."""
    network.eval()
    hits = torch.zeros(2)
    for x, y in zip(data.split(BATCH), labels.split(BATCH), strict=True):
        found = network(normalise(x)).topk(5).indices == y[:, None]
        hits += torch.tensor([found[:, 0].sum(), found.sum()])
    return tuple((hits / len(data)).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, val/ and classes.tsv")
    parser.add_argument("--out", type=Path, default=HERE, help="where weights.pt and labels.tsv are written")
    parser.add_argument("--checkpoint", type=Path, help="default: FOLDER/checkpoint.pt")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    kept = classes(given.data)
    wnids = [wnid for wnid, _ in kept]
    data, labels = pictures(given.data / "train", wnids)
    held, truth = pictures(given.data / "val", wnids)
    run = Run(len(kept), given.seed, given.checkpoint or given.data / "checkpoint.pt")
    schedule = [(phase, epoch) for phase in PHASES for epoch in range(phase.epochs)]
    for phase, within in schedule[run.epoch :]:
        began = time.monotonic()
        loss = run.train_epoch(phase, within, data, labels)
        run.epoch += 1
        run.save()
        first, fifth = accuracy(run.average.module, held, truth)
        seconds = time.monotonic() - began
        figures = f"loss {loss:.3f} top-1 {first:.4f} top-5 {fifth:.4f} {seconds:.0f} s"
        print(f"epoch {run.epoch:3} {phase.side} px {figures}", flush=True)

    renew_statistics(run.average.module, data)
    print("with renewed statistics: top-1 {:.4f} top-5 {:.4f}".format(*accuracy(run.average.module, held, truth)))
    halves = {name: t.half() if t.is_floating_point() else t for name, t in run.average.module.state_dict().items()}
    torch.save({name: tensor.contiguous() for name, tensor in halves.items()}, given.out / "weights.pt")
    (given.out / "labels.tsv").write_text("".join(f"{wnid}\t{name}\n" for wnid, name in kept), encoding="utf-8")


if __name__ == "__main__":
    main()
