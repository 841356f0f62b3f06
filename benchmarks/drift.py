"""How far `precision="bf16"` leads from float32: `python -m benchmarks.drift` prints both figures for each method.

Rank is Spearman's correlation over all cells, distance ||bf16 - float32|| / ||float32||; the worst of three
photographs.
"""

from __future__ import annotations

import argparse

import torch

import explainers
from explainers.maps import rank_correlation
from models import load_model

from .cases import network
from .sheet import photograph

METHODS = {
    "integrated_gradients": {},
    "smooth_grad": {},
    "gradient_shap": {},
    "occlusion": {},
    "rise": {"samples": 500},
    "score_cam": {"layer": "layer4"},
}


def drift(name: str, net: torch.nn.Module, images: torch.Tensor, **options: object) -> tuple[float, float]:
    """(worst rank correlation, worst relative distance) over the pictures; pixels are summed over their colours."""
    method = explainers.METHODS[name]
    exact, coarse = (method(net, images, **options, precision=p) for p in ("float32", "bf16"))  # type: ignore[arg-type]
    if exact.ndim == 4:
        exact, coarse = exact.sum(1), coarse.sum(1)
    distance = (coarse - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    return float(rank_correlation(exact, coarse).min()), float(distance.max())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["embedded", "resnet18"])
    names = parser.parse_args().models
    embedded = load_model("embedded")
    print("| method | network | rank | distance |\n|---|---|---|---|")
    for name in names:
        net, side, _ = network(name)
        photos = [embedded.prepare(photograph(each)) for each in ("coffee", "cat", "rocket")]
        images = torch.nn.functional.interpolate(torch.cat(photos), (side, side), mode="bilinear")
        for method, options in METHODS.items():
            rank, distance = drift(method, net, images, **options)
            print(f"| {method} | {name} | {rank:.4f} | {distance:.2%} |", flush=True)


if __name__ == "__main__":
    main()
