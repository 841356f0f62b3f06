"""Oracle of ReX."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from tests.support.nets import curved

from .oracle import Oracle, each_image


@each_image
def rex_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """3 partitions of 4 steps from seed 3, hidden pixels are 1: each subset of parts on its own, by the definition.

    The prediction is kept as such, another class if its score is nearer to that of the image than to that of ones.
    """
    generator = torch.Generator().manual_seed(3)
    cuts = torch.stack([torch.rand(3, 2, generator=generator) for _ in range(4)], 1).tolist()
    parts = frozenset(range(4))

    def inside(boxes: list[tuple[int, ...]]) -> Tensor:
        mask = torch.zeros(12, 16, dtype=torch.bool)
        for top, bottom, left, right in boxes:
            mask[top:bottom, left:right] = True
        return mask

    def size(boxes: list[tuple[int, ...]]) -> int:
        return int(inside(boxes).sum())

    def scores_of(shown: Tensor) -> list[float]:
        with torch.no_grad():
            return net(torch.where(shown, image, 1.0)[None])[0].tolist()

    full, empty = (scores_of(torch.full((12, 16), value)) for value in (True, False))

    def is_kept(shown: Tensor) -> bool:
        scores = scores_of(shown)
        if max(full) == full[c]:
            return max(scores) == scores[c]
        return abs(scores[c] - full[c]) <= abs(scores[c] - empty[c])

    total = torch.zeros(12, 16, dtype=torch.float64)
    for partition in cuts:
        boxes: list[tuple[int, ...]] = [(0, 12, 0, 16)]
        for down, across in partition:
            top, bottom, left, right = box = max(boxes, key=lambda each: size([each]))
            boxes.remove(box)
            y, z = top + 1 + int(down * (bottom - top - 1)), left + 1 + int(across * (right - left - 1))
            four = [(top, y, left, z), (top, y, z, right), (y, bottom, left, z), (y, bottom, z, right)]
            subsets = [frozenset(each) for n in range(5) for each in itertools.combinations(range(4), n)]
            keeps = {each: is_kept(inside(boxes + [four[i] for i in each])) for each in subsets}
            for i in parts:
                witnesses = [w for w in subsets if i not in w and keeps[parts - w] and not keeps[parts - w - {i}]]
                if witnesses:
                    total[inside([four[i]])] += 1 / (1 + min(map(len, witnesses)))
            fewest = min((each for each in subsets if keeps[each]), key=lambda s: size([four[i] for i in s]))
            boxes += [four[i] for i in sorted(fewest)]
    return total / 3


ORACLES: dict[str, Oracle] = {
    "rex": Oracle(
        "the definition over all subsets, one box at a time",
        curved,
        rex_by_hand,
        classes=[1, 3, 4],
        options={"samples": 3, "steps": 4, "seed": 3, "baseline": 1.0},
    )
}
