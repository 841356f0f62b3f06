"""What images have in common: clusters of the maps within a class, and features of the images in two dimensions.

Spectral Relevance Analysis: the maps of a class are pooled to a small grid and normalized. A graph connects each map to
its nearest neighbors. The largest gap between eigenvalues of its normalized Laplacian determines the number of
clusters, which are then found by spectral clustering. The pooled features are shown by t-SNE.

Source   Lapuschkin et al. 2019, doi:10.1038/s41467-019-08987-4; van der Maaten and Hinton 2008, "Visualizing Data using
         t-SNE", JMLR 9
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import explainers
from saliscope.runs.report.analysis.columns import evenly
from saliscope.runs.report.analysis.maps import LEAST, MOST_OF_CLASS, Sample
from saliscope.runs.rows import Floats, Integers
from saliscope.zoo import Model

MOST_CLASSES = 200
"""Maximum number of classes whose maps are clustered: those with the most maps."""
NEIGHBORS = (5, 10)
MOST_CLUSTERS = 6


@dataclass(frozen=True, eq=False)
class Cluster:
    """Similar maps of one class: `members` are indices of maps, the most typical first; `mean` is `[h, w]`."""

    name: str
    of: int
    """Number of maps of the class."""
    members: Integers
    mean: Floats


def find_clusters(maps: Sample) -> list[Cluster]:
    """Return the clusters of classes with enough maps, the largest of each class first."""
    grid, counts = maps.grid, Counter(maps.classes.tolist())
    enough = {name for name, count in counts.most_common(MOST_CLASSES) if count >= LEAST}
    result = []
    for name in (name for name in counts if name in enough):
        # The eigenvalues of more maps take minutes.
        members = evenly(np.flatnonzero(maps.classes == name), MOST_OF_CLASS)
        labels = spectral(np.sqrt(grid[members]).reshape(len(members), -1))
        parts = [members[labels == k] for k in range(labels.max() + 1)]
        for part in sorted(parts, key=len, reverse=True):
            mean = grid[part].mean(0)
            typical = np.argsort(((grid[part] - mean) ** 2).sum((1, 2)), kind="stable")
            result.append(Cluster(name, len(members), part[typical], maps.values[part].mean(0)))
    return result


def spectral(points: Floats) -> Integers:
    """Return the cluster `[n]` of each point `[n, d]`; the eigengap determines their number, up to `MOST_CLUSTERS`."""
    from scipy.sparse.csgraph import laplacian  # scipy takes a second to start
    from sklearn.cluster import SpectralClustering  # scikit-learn takes seconds to start
    from sklearn.neighbors import kneighbors_graph  # as above

    least, most = NEIGHBORS
    near = kneighbors_graph(points, max(least, min(most, len(points) // 8)), include_self=False)
    affinity = (0.5 * (near + near.T)).toarray()
    values = np.linalg.eigvalsh(laplacian(affinity, normed=True))
    count = int(np.diff(values[: MOST_CLUSTERS + 1]).argmax()) + 1
    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    method = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")  # separate groups are expected
        return np.asarray(method.fit_predict(affinity), dtype=np.int64)


FEWEST = 20
"""Minimum number of images."""
PERPLEXITY = 30
DIMENSIONS = 50
"""Dimensions after a PCA, before t-SNE."""
BATCH = 4
"""Images per forward pass; 16 of 224 pixels need 400 MB more memory."""


class Features:
    """Collects the pooled features of images: the activations of the model's default layer, averaged over positions.

    `failed` is whether the model has no layer with positions.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.failed = model, False
        self.keys: list[int] = []
        self._values: list[NDArray[np.float64]] = []
        self._inputs: list[torch.Tensor] = []

    def add(self, key: int, image: Image.Image) -> None:
        """Add an image."""
        self.keys.append(key)
        self._inputs.append(self.model.prepare(image))
        if len(self._inputs) == BATCH:
            self._compute()

    def places(self) -> list[list[float]]:
        """Return the key and the position of each image; empty if `project` returns None."""
        self._compute()
        found = None if self.failed or not self.keys else project(np.concatenate(self._values))
        places = [] if found is None else zip(self.keys, found.tolist(), strict=True)
        return [[key, round(x, 4), round(y, 4)] for key, (x, y) in places]

    def _compute(self) -> None:
        inputs, self._inputs = self._inputs, []
        if self.failed or not inputs:
            return
        device = next((tensor.device for tensor in self.model.network.parameters()), None)
        try:
            maps = explainers.feature_maps(self.model.network, torch.cat(inputs).to(device))
            self._values.append(maps.float().mean(dim=(2, 3)).cpu().numpy().astype(np.float64))
        except explainers.ExplainerError:
            self.failed = True


def project(features: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return positions `[n, 2]` between 0 and 1 of features `[n, d]`, or None for too few images, or equal ones."""
    from sklearn.decomposition import PCA  # scikit-learn takes seconds to start
    from sklearn.manifold import TSNE  # as above

    if len(features) < FEWEST or not np.isfinite(features).all():
        return None
    scaled = features - features.mean(0)
    size = float(np.sqrt((scaled**2).sum(1).mean()))
    if size == 0:
        return None
    scaled = scaled / size
    if min(scaled.shape) > DIMENSIONS:
        scaled = PCA(DIMENSIONS, random_state=0).fit_transform(scaled)
    perplexity = min(PERPLEXITY, (len(scaled) - 1) / 3)
    method = TSNE(2, perplexity=perplexity, init="pca" if scaled.shape[1] > 1 else "random", random_state=0)
    places = np.asarray(method.fit_transform(scaled), dtype=np.float64)
    low, high = places.min(0), places.max(0)
    return (places - low) / np.where(high > low, high - low, 1.0)
