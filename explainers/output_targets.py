"""Targets for outputs that are not class scores: embeddings, segmentation maps, detections, measured values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget, kind_of, shorten
from explainers.options import whole_number, whole_numbers
from explainers.outputs import EMBEDDINGS, class_maps_of, describe_output, named, tensors_in
from explainers.targets import Target, count_mismatch, out_of_range


@dataclass(frozen=True, eq=False)
class Similarity(Target):
    """Cosine similarity of the model's output [N, D] to an `embedding` [D], or to one for each image, [N, D].

    The mean similarity to the embeddings `against`, [D] or [M, D], is subtracted: what supports one sentence but not
    the others. `text_embedding` computes the embeddings of sentences. If the output contains several tensors, the one
    named `image_embeds` or `image_features` is used, else the one with D values per row.
    """

    embedding: Tensor
    against: Tensor | None = None

    def __post_init__(self) -> None:
        embedding = _vectors("embedding", self.embedding)
        object.__setattr__(self, "embedding", embedding)
        if self.against is not None:
            against = _vectors("against", self.against)
            if against.shape[-1] != embedding.shape[-1]:
                raise BadTarget(
                    f"against has {against.shape[-1]} values, but embedding has {embedding.shape[-1]}. Give embeddings "
                    "of the same model."
                )
            object.__setattr__(self, "against", against)

    def check(self, count: int) -> None:
        if self.embedding.ndim == 2 and len(self.embedding) not in (1, count):
            raise count_mismatch(f"{len(self.embedding)} embeddings were", count, "one [D] for all")

    def __call__(self, output: Any) -> Tensor:
        """Return the similarities [N], in [-1, 1]."""
        length = self.embedding.shape[-1]
        own = None if isinstance(output, Tensor) else named(output, *EMBEDDINGS)
        candidates = tensors_in(output) if own is None else tensors_in(own)
        found = [tensor.flatten(1) for _, tensor in candidates if len(tensor) and tensor[0].numel() == length]
        if len(found) != 1:
            raise BadTarget(
                f"The embedding has {length} values, but the model returned {describe_output(output)}, in which "
                f"{len(found) or 'no'} tensors have {length} values per image. Give an embedding of the output's "
                "length, or forward= with a function that returns the right tensor."
            )
        vector = found[0]
        similarity = torch.cosine_similarity(vector, self.embedding.to(vector).reshape(-1, length), dim=1)
        if self.against is None:
            return similarity
        others = self.against.to(vector).reshape(1, -1, length)
        return similarity - torch.cosine_similarity(vector[:, None], others, dim=2).mean(1)

    def rows(self, image_indices: Sequence[int]) -> Target:
        if self.embedding.ndim < 2 or len(self.embedding) == 1:
            return self
        return Similarity(self.embedding[list(image_indices)], self.against)

    def __repr__(self) -> str:
        others = "" if self.against is None else f", against {tuple(self.against.shape)}"
        return f"Similarity(embedding of {tuple(self.embedding.shape)}{others})"


@dataclass(frozen=True, eq=False)
class MaskScores(Target):
    """Mean logit of `class_` over the pixels of a `mask` [H, W], or of one mask for each image, [N, H, W].

    `class_` is one class, or one for each image.

    For segmentation outputs: a tensor [N, K, H, W], {"out": ...} or an object with `logits`, of the same size as the
    mask. Outputs of queries (MaskFormer, Mask2Former, OneFormer) give the sum over the queries of class probability
    times mask probability. The values of the mask are weights, 0 outside.
    """

    mask: Tensor
    class_: int | Sequence[int]

    def __post_init__(self) -> None:
        mask, class_ = _tensor("mask", self.mask, "a tensor [H, W]"), whole_number(self.class_)
        classes = whole_numbers(self.class_) if class_ is None else (class_,)
        if mask.ndim not in (2, 3) or not mask.numel():
            raise BadTarget(f"mask has shape {tuple(mask.shape)}. Give [H, W], or [N, H, W] for N images.")
        if bool((mask < 0).any()):
            raise BadTarget(f"mask contains {float(mask.min()):.3g}. Give weights of at least 0.")
        if not bool(mask.flatten(-2).any(-1).all()):
            raise BadTarget("mask is empty. Give a mask with at least one value above 0.")
        if not classes:
            raise BadTarget(
                f"class_={shorten(self.class_)} is not valid. Give the index of one class, or of one for each image."
            )
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "class_", classes if class_ is None else class_)

    def check(self, count: int) -> None:
        if self.mask.ndim == 3 and len(self.mask) not in (1, count):
            raise count_mismatch(f"{len(self.mask)} masks were", count, "one [H, W] for all")
        if not isinstance(self.class_, int) and len(self.class_) != count:
            raise count_mismatch(f"{len(self.class_)} classes were", count, "one class for all (an int)")

    def __call__(self, output: Any) -> Tensor:
        """Return the mean logits [N]."""
        scores = class_maps_of(output)
        for index in (self.class_,) if isinstance(self.class_, int) else self.class_:
            if not 0 <= index < scores.shape[1]:
                raise BadTarget(out_of_range(index, scores.shape[1]))
        size = tuple(scores.shape[-2:])
        if tuple(self.mask.shape[-2:]) != size:
            raise BadTarget(
                f"mask has size {tuple(self.mask.shape[-2:])}, but the model's output has {size}. Give a mask of the "
                f"output's size, for example torch.nn.functional.interpolate(mask[None, None].float(), {size})[0, 0]."
            )
        weights = self.mask.to(scores)
        own = scores[range(len(scores)), self.class_] if not isinstance(self.class_, int) else scores[:, self.class_]
        return (own * weights).sum((1, 2)) / weights.sum((-2, -1))

    def rows(self, image_indices: Sequence[int]) -> Target:
        own_masks = self.mask.ndim == 3 and len(self.mask) > 1
        mask = self.mask[list(image_indices)] if own_masks else self.mask
        class_ = self.class_ if isinstance(self.class_, int) else [self.class_[i] for i in image_indices]
        return MaskScores(mask, class_)

    def __repr__(self) -> str:
        return f"MaskScores({int(self.mask.count_nonzero())} pixels, class_={self.class_})"


@dataclass(frozen=True, eq=False)
class BoxScores(Target):
    """Scores of the detections that match given boxes, in the output of a torchvision detector or of `read`.

    `boxes` [M, 4] are (left, top, right, bottom) in pixels, `labels` is [M]. The score of a detection with the same
    label is weighted by its intersection over union if that is at least `overlap`. An image without a match scores 0.

    `read` turns the output of another detector into one dict per image: with `boxes`, `labels` and `scores` as in
    torchvision, or with `boxes` and `class_scores` [M, K] for candidates before non-maximum suppression, of which the
    one with the highest product of score and overlap counts. `DetrDetections` and `YoloDetections` are such functions.
    """

    boxes: Tensor
    labels: tuple[int, ...]
    overlap: float = 0.5
    read: Callable[[Any], list[dict[str, Tensor]]] | None = None

    def __post_init__(self) -> None:
        boxes, one = _tensor("boxes", self.boxes, "a tensor [M, 4]"), whole_number(self.labels)
        labels = whole_numbers(self.labels) if one is None else (one,)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
            raise BadTarget(
                f"boxes has shape {tuple(boxes.shape)}. Give [M, 4]: (left, top, right, bottom) in pixels for each box."
            )
        if not bool((boxes[:, 2:] > boxes[:, :2]).all()):
            raise BadTarget(
                "A box has no width or height. Give (left, top, right, bottom) with right > left and bottom > top."
            )
        if labels is None or len(labels) != len(boxes):
            raise BadTarget(
                f"labels={shorten(self.labels)} does not match {len(boxes)} boxes. Give one label for each box."
            )
        overlap = self.overlap
        if isinstance(overlap, bool) or not isinstance(overlap, (int, float)) or not 0 <= overlap <= 1:
            raise BadTarget(f"overlap={shorten(overlap)} is not valid. Give a number from 0 to 1.")
        object.__setattr__(self, "boxes", boxes)
        object.__setattr__(self, "labels", labels)

    def __call__(self, output: Any) -> Tensor:
        """Return the scores [N], between 0 and the number of boxes."""
        found = output if self.read is None else self.read(output)
        if not isinstance(found, (list, tuple)) or not found or not all(map(are_detections, found)):
            given = "The model" if self.read is None else "read"
            raise BadTarget(
                f"{given} returned {describe_output(found)}, but BoxScores needs detections: a list with one dict "
                "per image, with boxes, labels and scores. Give read=DetrDetections(size, activation) for the DETR "
                "family, read=YoloDetections() for YOLO, or your own function."
            )
        return torch.stack([self._score_image(each) for each in found])

    def _score_image(self, found: dict[str, Tensor]) -> Tensor:
        if "class_scores" in found:
            return self._score_candidates(found["boxes"], found["class_scores"])
        total = found["scores"].sum() * 0
        for box, label in zip(self.boxes.to(found["boxes"]), self.labels, strict=True):
            match = found["labels"] == label
            if match.any():
                overlaps = _overlap(box, found["boxes"][match])
                best = overlaps.argmax()
                if overlaps[best] >= self.overlap:
                    total = total + overlaps[best] * found["scores"][match][best]
        return total

    def _score_candidates(self, boxes: Tensor, scores: Tensor) -> Tensor:
        total = scores.sum() * 0
        for box, label in zip(self.boxes.to(boxes), self.labels, strict=True):
            if not 0 <= label < scores.shape[1]:
                raise BadTarget(out_of_range(label, scores.shape[1]))
            overlaps = _overlap(box, boxes)
            matches = overlaps >= self.overlap
            if matches.any():
                total = total + (overlaps * scores[:, label])[matches].amax()
        return total

    def __repr__(self) -> str:
        return f"BoxScores({len(self.labels)} boxes, labels={self.labels})"


@dataclass(frozen=True, eq=False)
class Regression(Target):
    """Mean of one part of the output, in the unit of the model's values.

        Regression("predicted_depth", mask=mask, unit="m")     mean depth of a region, [N, H, W]
        Regression(index=(4, 0), unit="px")                    x of the fifth key point, [N, points, 2]
        Regression(index=2)                                    the third count, [N, K]

    `name` is the key or attribute of the output; None if the output has only one tensor. `index` selects along the axes
    after the images. The rest is averaged; for the last two axes, by the weights of a `mask` [H, W], or of one mask for
    each image, [N, H, W]. `unit` only appears in the description.
    """

    name: str | None = None
    index: int | tuple[int, ...] = ()
    mask: Tensor | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        one = whole_number(self.index)
        index = whole_numbers(self.index) if one is None else (one,)
        if index is None or any(each < 0 for each in index):
            raise BadTarget(f"index={shorten(self.index)} is not valid. Give an index from 0, or one for each axis.")
        object.__setattr__(self, "index", index)
        mask = self.mask
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.ndim not in (2, 3):
                raise BadTarget(f"mask={shorten(mask)} is not valid. Give a tensor [H, W], or [N, H, W] for N images.")
            if bool((mask < 0).any()) or not bool(mask.flatten(-2).any(-1).all()):
                raise BadTarget("mask must have weights of at least 0, and at least one above 0 for each image.")

    def check(self, count: int) -> None:
        if self.mask is not None and self.mask.ndim == 3 and len(self.mask) not in (1, count):
            raise count_mismatch(f"{len(self.mask)} masks were", count, "one [H, W] for all")

    def __call__(self, output: Any) -> Tensor:
        """Return the means [N]."""
        values = self._tensor(output)
        for position in self.index if isinstance(self.index, tuple) else (self.index,):
            if values.ndim < 2 or position >= values.shape[1]:
                raise BadTarget(
                    f"index={self.index} does not exist in the values of shape {tuple(self._tensor(output).shape)}. "
                    "Give one index for each axis after the images, each below the axis's size."
                )
            values = values[:, position]
        if self.mask is None:
            return values.reshape(len(values), -1).mean(1)
        if values.ndim < 3 or tuple(values.shape[-2:]) != tuple(self.mask.shape[-2:]):
            raise BadTarget(
                f"mask has size {tuple(self.mask.shape[-2:])}, but the values have shape {tuple(values.shape)}. Give a "
                "mask of the size of their last two axes."
            )
        weights = self.mask.to(values)
        weights = weights / weights.sum((-2, -1), keepdim=True)
        maps = values.flatten(1, -3).mean(1) if values.ndim > 3 else values
        return (maps * weights).sum((1, 2))

    def _tensor(self, output: Any) -> Tensor:
        found = [tensor for _, tensor in tensors_in(output)] if self.name is None else [named(output, self.name)]
        if len(found) != 1 or not isinstance(found[0], Tensor):
            wanted = "one tensor" if self.name is None else f"a tensor {self.name!r}"
            raise BadTarget(
                f"The model returned {describe_output(output)}, not {wanted}. Give the name of a part of the output: "
                "Regression('predicted_depth')."
            )
        return found[0]

    def rows(self, image_indices: Sequence[int]) -> Target:
        if self.mask is None or self.mask.ndim < 3 or len(self.mask) == 1:
            return self
        return replace(self, mask=self.mask[list(image_indices)])

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name else []
        parts += [f"index={self.index}"] if self.index != () else []
        parts += [] if self.mask is None else [f"mask of {int(self.mask.count_nonzero())} pixels"]
        parts += [f"unit={self.unit!r}"] if self.unit else []
        return f"Regression({', '.join(parts)})"


def are_detections(found: Any) -> bool:
    """Return whether this is a detector's output for one image: a box, a label and a score for each detection."""
    if isinstance(found, dict) and all(isinstance(found.get(name), Tensor) for name in ("boxes", "class_scores")):
        return found["class_scores"].ndim == 2 and found["boxes"].shape == (len(found["class_scores"]), 4)
    if not isinstance(found, dict) or not all(isinstance(found.get(k), Tensor) for k in ("boxes", "labels", "scores")):
        return False
    count = len(found["scores"])
    return found["boxes"].shape == (count, 4) and found["labels"].shape == found["scores"].shape == (count,)


def _overlap(box: Tensor, boxes: Tensor) -> Tensor:
    sides = (torch.minimum(box[2:], boxes[:, 2:]) - torch.maximum(box[:2], boxes[:, :2])).clamp(min=0)
    shared = sides.prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return shared / ((box[2:] - box[:2]).prod() + areas - shared)


def _vectors(name: str, given: Any) -> Tensor:
    """Return embeddings [D] or [M, D] without rows of zeros.

    Errors   BadTarget
    """
    vectors = _tensor(name, given, "a tensor [D] or [N, D]")
    if vectors.ndim not in (1, 2) or not vectors.numel():
        raise BadTarget(f"{name} has shape {tuple(vectors.shape)}. Give [D], or [N, D] for N images.")
    if not bool((vectors.reshape(-1, vectors.shape[-1]).norm(dim=1) > 0).all()):
        raise BadTarget(f"{name} has a row of zeros, so the cosine is undefined. Give nonzero embeddings.")
    return vectors


def _tensor(name: str, given: Any, form: str) -> Tensor:
    """Convert a tensor, list or array to a detached tensor of finite numbers.

    Errors   BadTarget
    """
    try:
        tensor = given.detach() if isinstance(given, Tensor) else torch.tensor(given)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise BadTarget(f"{name} is {kind_of(given)}; give {form}.") from reason
    if tensor.is_complex() or not bool(tensor.isfinite().all()):
        raise BadTarget(f"{name} contains complex or non-finite numbers; give {form} of finite real numbers.")
    if tensor.is_inference():  # autograd cannot save tensors created in inference mode, such as detected boxes
        with torch.inference_mode(False):
            tensor = tensor.clone()
    return tensor if tensor.is_floating_point() else tensor.float()
