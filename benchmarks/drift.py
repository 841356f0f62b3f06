"""How far short cuts lead from the long way: bfloat16 from float32, and defaults from runs several times as long.

python -m benchmarks.drift                     bf16 beside float32, for every method that has the choice
python -m benchmarks.drift --defaults          default runs beside long ones (hours for all; --only picks)
python -m benchmarks.drift --only rise occlusion --photos coffee cat

Rank is Spearman's correlation over all cells, distance ||short - long|| / ||long||: the worst photograph, and for
defaults the mean rank too. A method may choose bfloat16 by itself (precision="auto") where its rank is above 0.999.
"""

from __future__ import annotations

import argparse
from typing import Any

from torch import Tensor, nn

import explainers
from benchmarks.cases import network
from benchmarks.sheet import photograph
from explainers.maps.resize import rank_correlation
from models import load_model

PHOTOS = ("coffee", "goldfish", "cat")
STEADY = 0.999
"""Rank above which a method may leave the precision to the machine."""

FEWER: dict[str, dict[str, Any]] = {
    "ss_cam": {"channels": 128},
    "is_cam": {"channels": 128},
    "rise": {"samples": 480},
    "mc_rise": {"samples": 480},
    "d_rise": {"samples": 512},
    "lime": {"samples": 500},
    "kernel_shap": {"samples": 500},
    "shapley_sampling": {"samples": 10},
    "sobol": {"samples": 8},
    "hsic": {"samples": 256},
    "extremal_perturbation": {"steps": 40},
    "integrated_gradients": {"steps": 50},
    "blur_integrated_gradients": {"steps": 50},
    "layer_integrated_gradients": {"steps": 50},
}
"""Shorter runs in which both precisions take the same points and masks."""

ALL = 65536
LONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("score_cam", {"layer": layer}, {"channels": ALL}) for layer in (None, "stages.6", "stages.5")),
    *(("is_cam", {"layer": layer}, {"channels": ALL, "steps": 10}) for layer in (None, "stages.6", "stages.5")),
    *(
        ("ss_cam", {"layer": layer}, {"channels": ALL, "samples": 35, "seed": 1})
        for layer in (None, "stages.6", "stages.5")
    ),
    ("rise", {}, {"samples": 3840, "seed": 1}),
    ("mc_rise", {}, {"samples": 3840, "seed": 1}),
    ("kernel_shap", {}, {"samples": 4000, "seed": 1}),
    ("shapley_sampling", {}, {"samples": 80, "seed": 1}),
    ("lime", {}, {"samples": 4000, "seed": 1}),
    ("extremal_perturbation", {}, {"steps": 600}),
    ("integrated_gradients", {}, {"steps": 1000}),
    ("blur_integrated_gradients", {}, {"steps": 1000}),
]
"""Method, options of both runs, and what the long one has beside them."""


def compared(
    net: nn.Module, image: Tensor, name: str, short: dict[str, Any], long: dict[str, Any]
) -> tuple[float, float]:
    """(rank correlation, relative distance) of two runs of a method; pixels are summed over their colours."""
    maps = [explainers.METHODS[name](net, image, **options) for options in (short, long)]
    one, other = (each.sum(1) if each.ndim == 4 else each for each in maps)
    distance = float((one - other).norm() / other.norm())
    return float(rank_correlation(one, other)), distance


def precisions(names: list[str], photos: list[str], only: list[str]) -> None:
    """The table of bfloat16."""
    print("| method | network | rank | distance | auto |\n|---|---|---|---|---|")
    board = load_model()
    for each in names:
        net, side, _ = network(each)
        images = [nn.functional.interpolate(board.prepare(photograph(p)), (side, side)) for p in photos]
        for name, method in explainers.METHODS.items():
            if "precision" not in method.options or method.applies(net) or (only and name not in only):
                continue
            options = FEWER.get(name, {})
            rows = [compared(net, x, name, {**options, "precision": "bf16"}, options) for x in images]
            rank, distance = min(r for r, _ in rows), max(d for _, d in rows)
            offered = "yes" if "auto" in method.options["precision"].choices else "no"
            doubt = " (!)" if (offered == "yes") != (rank > STEADY) else ""
            print(f"| {name} | {each} | {rank:.4f} | {distance:.2%} | {offered}{doubt} |", flush=True)


def defaults(photos: list[str], only: list[str]) -> None:
    """The table of default runs of the model on board."""
    model = load_model()
    print("| method | layer | long run | mean rank | worst rank | worst distance |\n|---|---|---|---|---|---|")
    for name, same, more in LONG:
        if only and name not in only:
            continue
        rows = [compared(model.network, model.prepare(photograph(p)), name, same, {**same, **more}) for p in photos]
        ranks = [rank for rank, _ in rows]
        said = ", ".join(f"{key}={'all' if value == ALL else value}" for key, value in more.items())
        figures = f"{sum(ranks) / len(ranks):.4f} | {min(ranks):.4f} | {max(distance for _, distance in rows):.2%}"
        print(f"| {name} | {same.get('layer') or '-'} | {said} | {figures} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["efficientnet_lite0"], help="for the table of bfloat16")
    parser.add_argument("--photos", nargs="+", default=list(PHOTOS))
    parser.add_argument("--only", nargs="+", default=[], help="names of methods")
    parser.add_argument("--defaults", action="store_true", help="default runs beside long ones")
    given = parser.parse_args()
    if given.defaults:
        defaults(given.photos, given.only)
    else:
        precisions(given.models, given.photos, given.only)


if __name__ == "__main__":
    main()
