"""ViT-CX: the causal impact of the patterns in a layer's output, with each pattern as a mask of the image."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.at_layer import activation_and_score
from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.keywords import LayerCost
from explainers.maps.resize import resize
from explainers.options import Range, Seed, Sigma
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.placement import place
from explainers.registry import method
from explainers.targets import TargetLike


@method(family="perturbation", returns="heat", title="ViT-CX", paper="Xie et al. 2023, arXiv:2211.03064", videos=False)
def vit_cx(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    distance: Annotated[
        float, Range(0, 1, 0.01, help="channels whose masks are closer than this cosine distance share a mask")
    ] = 0.1,
    sigma: Sigma = 0.02,
    seed: Seed = 0,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """ViT-CX: the mean score of the image masked by clusters of the layer's channels, for each pixel.

        1/K Σ_k (s_k - mean s) M_k / Σ_j M_j,  s_k = y(x ∘ M_k + ε_k) - y(x + ε_k),  ε_k = (1 - M_k) ∘ noise

    Each channel of the layer's output is enlarged to the image and scaled to [0, 1]; channels with similar masks form a
    cluster (complete linkage), and M_k is their sum, scaled again. Adding the same noise outside the mask to the whole
    image removes its own effect from the score. The paper adds y(x) to s_k instead of subtracting the mean, which adds
    a constant to the map. By default the layer is the input of the last attention of a vision transformer. In the
    authors' code y is a softmax probability (give `Probability` as target), and the noise has a standard deviation of
    0.1 in the model's units, 2% of the range of a normalized photo. Constant channels have no mask. If stopped early,
    the remaining clusters are left out.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the input's resolution, signed, in logits; all 0 if every channel is constant
    Errors   BadTarget, LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Xie et al. 2023, section 4, arXiv:2211.03064; compared with the code of the authors,
             github.com/vaynexie/CausalX-ViT

    Example
        >>> vit_cx(vit, images, 281).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        layout, activations, _ = activation_and_score(run, cost.get("layer"))
        x, total = run.images, torch.zeros_like(run.scoring.score_inputs())
        maps = layout.to_maps(at_least_float32(activations)).to(at_least_float32(x[:0]))
        height, width = x.shape[-2:]
        masks = [_cluster_masks(place(channels, layout.placement), (height, width), distance) for channels in maps]
        generators, spans = PerImageGenerators(len(x), seed, x.device), extremes(x)[1]
        done = 0
        sums, covers = torch.zeros(2, len(x), *x.shape[-2:]).to(maps)

        def work(chunk: range) -> None:
            nonlocal done
            for index, own in enumerate(masks):
                part = own[chunk.start : chunk.stop].to(x)
                if not len(part):
                    continue
                noise = generators.normal_noise(index, len(part), *x.shape[1:]).to(x) * (sigma * spans[index])
                noise = noise * (1 - part[:, None])
                rows = [index] * len(part)
                masked = run.scoring.values(x[index] * part[:, None] + noise, rows)
                impact = masked - run.scoring.values(x[index] + noise, rows)
                total[index] += impact.sum()
                sums[index] += torch.einsum("k,khw->hw", impact, own[chunk.start : chunk.stop])
                covers[index] += own[chunk.start : chunk.stop].sum(0)
            done = chunk.stop

        def heat() -> Tensor:
            counts = torch.tensor([max(1, min(done, len(own))) for own in masks]).to(sums).view(-1, 1, 1)
            return torch.where(covers > 0, sums / covers - total.view(-1, 1, 1) / counts, 0) / counts

        run.loop.run(max(1, *map(len, masks)), run.loop.rows(passes=2), work, heat)
        return heat()


def _cluster_masks(channels: Tensor, size: tuple[int, int], distance: float) -> Tensor:
    """Return the masks [K, H, W] of clusters of channels [C, h, w], scaled to [0, 1]."""
    masks = _scaled(resize(channels, size))
    flat = masks.flatten(1)
    norms = flat.norm(dim=1).clamp(min=torch.finfo(flat.dtype).tiny)
    labels = complete_linkage(1 - flat @ flat.T / norms[:, None] / norms, distance)
    clusters = masks.new_zeros(int(labels.max()) + 1 if len(labels) else 0, *size).index_add_(0, labels, masks)
    del masks, flat  # a hundred MB or more
    return _scaled(clusters)


def _scaled(maps: Tensor) -> Tensor:
    """Scale maps [K, H, W] to [0, 1]; constant maps are left out."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    varies = (high > low).flatten()
    return maps[varies].sub_(low[varies]).div_((high - low)[varies])


def complete_linkage(distances: Tensor, limit: float) -> Tensor:
    """Cluster rows by their distances [C, C]: merge the two closest clusters until none are closer than `limit`.

    The distance of two clusters is the largest distance of their members.

    Returns  the number of each row's cluster [C], in order of the first row
    """
    rows = len(distances)
    between = distances.clone().fill_diagonal_(torch.inf)
    labels = torch.arange(rows, device=distances.device)
    nearest, other = between.min(1) if rows else (between, between)
    while rows and float(nearest.min()) < limit:
        first = int(nearest.argmin())
        i, j = sorted((first, int(other[first])))  # a cluster is named after its first row
        labels[labels == j] = i
        merged = torch.maximum(between[i], between[j])
        between[i], between[:, i] = merged, merged
        between[j], between[:, j], between[i, i] = torch.inf, torch.inf, torch.inf
        # Distances only grow, so only clusters whose nearest one was merged need a new one.
        stale = ((other == i) | (other == j)).nonzero().flatten().unique()
        stale = torch.cat([stale, stale.new_tensor([i, j])])
        nearest[stale], other[stale] = between[stale].min(1)
    return torch.unique(labels, return_inverse=True)[1]
