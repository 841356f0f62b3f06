"""A view of the pooled features of images in two dimensions, by t-SNE.

Source   van der Maaten and Hinton 2008, "Visualizing Data using t-SNE", JMLR 9
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import explainers
from saliscope.zoo import Model

LEAST = 20
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
        self._waiting: list[tuple[int, Image.Image]] = []

    def add(self, key: int, image: Image.Image) -> None:
        """Add an image."""
        self._waiting.append((key, image))
        if len(self._waiting) == BATCH:
            self._compute()

    def values(self) -> NDArray[np.float64]:
        """Return the features `[n, channels]` of the images, in the order of `keys`."""
        self._compute()
        return np.concatenate(self._values) if self._values else np.zeros((0, 1))

    def places(self) -> list[list[float]]:
        """Return the key and the position of each image; empty if `project` returns None."""
        found = project(self.values())
        if found is None:
            return []
        return [[key, round(float(x), 4), round(float(y), 4)] for key, (x, y) in zip(self.keys, found, strict=True)]

    def _compute(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self.failed or not waiting:
            return
        device = next((tensor.device for tensor in self.model.network.parameters()), torch.device("cpu"))
        inputs = torch.cat([self.model.prepare(image) for _, image in waiting]).to(device)
        try:
            maps = explainers.feature_maps(self.model.network, inputs)
        except explainers.ExplainerError:
            self.failed = True
            return
        self.keys += [key for key, _ in waiting]
        self._values.append(maps.float().mean(dim=(2, 3)).cpu().numpy().astype(np.float64))


def project(features: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64] | None:
    """Return positions `[n, 2]` between 0 and 1 of features `[n, d]`, or None for too few images, or equal ones."""
    from sklearn.decomposition import PCA  # scikit-learn takes seconds to start
    from sklearn.manifold import TSNE  # as above

    if len(features) < LEAST or not np.isfinite(features).all():
        return None
    scaled = features - features.mean(0)
    size = float(np.sqrt((scaled**2).sum(1).mean()))
    if size == 0:
        return None
    scaled = scaled / size
    if min(scaled.shape) > DIMENSIONS:
        scaled = PCA(DIMENSIONS, random_state=seed).fit_transform(scaled)
    perplexity = min(PERPLEXITY, (len(scaled) - 1) / 3)
    method = TSNE(2, perplexity=perplexity, init="pca" if scaled.shape[1] > 1 else "random", random_state=seed)
    places = np.asarray(method.fit_transform(scaled), dtype=np.float64)
    low, high = places.min(0), places.max(0)
    return (places - low) / np.where(high > low, high - low, 1.0)
