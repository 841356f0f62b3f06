"""Accuracy of approximations: bfloat16 against float32, and default runs against several times longer ones.

python -m benchmarks.drift                     bf16 against float32, for every method with the option
python -m benchmarks.drift --defaults          default runs against long ones (hours for all; --only selects)
python -m benchmarks.drift --only rise occlusion --photos coffee cat

Rank is Spearman's rank correlation over all cells, distance ||short - long|| / ||long||; both of the worst image,
and for defaults also the mean rank. precision="auto" is offered to methods with a rank above 0.999.
"""

from __future__ import annotations

import argparse
from typing import Any

from torch import Tensor, nn

import explainers
from benchmarks.cases import network
from benchmarks.sheet import open_image
from explainers.maps.resize import rank_correlation
from saliscope.zoo import load_model

PHOTOS = ("coffee", "goldfish", "cat")
AUTO_RANK = 0.999
"""Rank above which precision="auto" is offered."""

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
    "rex": {"samples": 5},
    "extremal_perturbation": {"steps": 40},
    "integrated_gradients": {"steps": 50},
    "blur_integrated_gradients": {"steps": 50},
    "layer_integrated_gradients": {"steps": 50},
    "layer_conductance": {"steps": 50},
}
"""Options of shorter runs, in which both precisions take the same points and masks."""

ALL_CHANNELS = 65536
LONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("score_cam", {"layer": layer}, {"channels": ALL_CHANNELS}) for layer in (None, "stages.6", "stages.5")),
    *(
        ("is_cam", {"layer": layer}, {"channels": ALL_CHANNELS, "steps": 10})
        for layer in (None, "stages.6", "stages.5")
    ),
    *(
        ("ss_cam", {"layer": layer}, {"channels": ALL_CHANNELS, "samples": 35, "seed": 1})
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
"""Method, options of both runs, and additional options of the long one."""


def compare(
    net: nn.Module, image: Tensor, name: str, short: dict[str, Any], long: dict[str, Any]
) -> tuple[float, float]:
    """Return rank correlation and relative distance of two runs; pixel maps are summed over the channels."""
    maps = [explainers.METHODS[name](net, image, **options) for options in (short, long)]
    approximate, reference = (values.sum(1) if values.ndim == 4 else values for values in maps)
    distance = float((approximate - reference).norm() / reference.norm())
    return float(rank_correlation(approximate, reference)), distance


def precisions(names: list[str], photos: list[str], only: list[str]) -> None:
    """Print the table of bfloat16 against float32."""
    print("| method | network | rank | distance | auto |\n|---|---|---|---|---|")
    built_in = load_model()
    for model_name in names:
        net, side, _ = network(model_name)
        images = [nn.functional.interpolate(built_in.prepare(open_image(p)), (side, side)) for p in photos]
        for name, method in explainers.METHODS.items():
            if "precision" not in method.options or method.applies(net) or (only and name not in only):
                continue
            options = FEWER.get(name, {})
            rows = [compare(net, x, name, {**options, "precision": "bf16"}, options) for x in images]
            rank, distance = min(r for r, _ in rows), max(d for _, d in rows)
            offered = "yes" if "auto" in method.options["precision"].choices else "no"
            contradiction = " (!)" if (offered == "yes") != (rank > AUTO_RANK) else ""
            print(f"| {name} | {model_name} | {rank:.4f} | {distance:.2%} | {offered}{contradiction} |", flush=True)


def defaults(photos: list[str], only: list[str]) -> None:
    """Print the table of default runs against long ones, on the built-in model."""
    model = load_model()
    print("| method | layer | long run | mean rank | worst rank | worst distance |\n|---|---|---|---|---|---|")
    for name, shared, longer in LONG:
        if only and name not in only:
            continue
        rows = [
            compare(model.network, model.prepare(open_image(p)), name, shared, {**shared, **longer}) for p in photos
        ]
        ranks = [rank for rank, _ in rows]
        run = ", ".join(f"{key}={'all' if value == ALL_CHANNELS else value}" for key, value in longer.items())
        numbers = f"{sum(ranks) / len(ranks):.4f} | {min(ranks):.4f} | {max(distance for _, distance in rows):.2%}"
        print(f"| {name} | {shared.get('layer') or '-'} | {run} | {numbers} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["efficientnet_lite0"], help="networks of the bfloat16 table")
    parser.add_argument("--photos", nargs="+", default=list(PHOTOS))
    parser.add_argument("--only", nargs="+", default=[], help="names of methods")
    parser.add_argument("--defaults", action="store_true", help="default runs against long ones")
    arguments = parser.parse_args()
    if arguments.defaults:
        defaults(arguments.photos, arguments.only)
    else:
        precisions(arguments.models, arguments.photos, arguments.only)


if __name__ == "__main__":
    main()
