"""Extract scores [N, K] from a model's output, or suggest a target function for other kinds of output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget, kind_of
from explainers.nested import attributes_of

_CLASS_MAPS = ("out", "masks", "segmentation")
_VECTORS = ("pool", "emb")
_VALUES = ("predicted_depth", "depth", "disparity")
EMBEDDINGS = ("image_embeds", "image_features")
"""Names of an image's embedding in the outputs of CLIP, SigLIP and open_clip."""


_SCORES = ("logits", "logits_per_image")
"""Names of scores [N, K] in an output; CLIP and SigLIP have one score for each sentence."""


def named(output: Any, *names: str) -> Any:
    """Return the first of these attributes or keys that is not None, else None."""
    for name in names:
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if value is not None:
            return value
    return None


def no_scores(output: Any) -> BadTarget:
    """Return the error for an output without scores [N, K], which suggests a target function for it."""
    return BadTarget(f"The model returned {describe_output(output)}, not scores [N, K]. {_remedy(output)}")


def scores_in(output: Any) -> Any:
    """Return the tensor that contains the scores: the output itself, or one of its parts by name; None if unknown."""
    return output if isinstance(output, Tensor) else named(output, *_SCORES)


def class_maps_of(output: Any) -> Tensor:
    """Return the scores [N, K, H, W] of a segmentation output: a tensor, {"out": ...}, or an object with `logits`.

    Errors   BadTarget
    """
    maps = _maps_of_queries(output)
    for name in ("out", "logits"):
        if not isinstance(maps, Tensor):
            maps = maps.get(name, maps) if isinstance(maps, dict) else getattr(maps, name, maps)
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise BadTarget(
            f"The model returned {describe_output(output)}, not class maps [N, K, H, W]. Masks require a segmentation "
            "network; give a class or a target function for this model."
        )
    return maps


def _maps_of_queries(output: Any) -> Any:
    """Return class maps [N, K, H, W] of an output with classes and a mask for each query; other outputs as they are."""
    for classes, masks in (("class_queries_logits", "masks_queries_logits"), ("logits", "pred_masks")):
        a, b = (None, None) if isinstance(output, Tensor) else (named(output, classes), named(output, masks))
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.ndim == 3 and b.ndim == 4:
            return torch.einsum("nqk,nqhw->nkhw", a.softmax(-1)[..., :-1], b.sigmoid())  # the last class: no object
    return output


def tensors_in(output: Any, path: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Yield every float tensor in an output that has a batch dimension, with the expression that selects it."""
    if isinstance(output, Tensor):
        if output.ndim and output.is_floating_point():
            yield path, output
    elif isinstance(output, dict):
        for name, value in output.items():
            own = type(output) is not dict and getattr(output, str(name), None) is value
            yield from tensors_in(value, f"{path}.{name}" if own else f"{path}[{name!r}]")
    elif isinstance(output, (list, tuple)):
        names = getattr(output, "_fields", None)
        for i, value in enumerate(output):
            place = f"[{-1 if i and i == len(output) - 1 else i}]"
            yield from tensors_in(value, f"{path}.{names[i]}" if names else f"{path}{place}")
    else:
        for name, value in attributes_of(output).items():
            yield from tensors_in(value, f"{path}.{name}")


def describe_output(output: Any) -> str:
    """Return a description of an output: its shape, or its type and the tensors in it."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    found = [f"{path} {tuple(tensor.shape)}" for path, tensor in tensors_in(output)]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return kind_of(output) + (f" with {', '.join(found[:3])}{more}" if found else "")


def _remedy(output: Any) -> str:
    if key := _list_of_detections(output):
        return (
            "For detections, give BoxScores(boxes, labels) or a target function, for example for the sum of all "
            f"scores: lambda output: torch.stack([each[{key!r}].sum() for each in output])."
        )
    found = list(tensors_in(output))
    if not found:
        return "Give forward=, a function that takes the images and returns scores [N, K] or another tensor."
    meaning, code = _suggest_score(*_select_tensor(found))
    return (
        f"{_hint(output)}Give a target function that turns this output into one score for each image, for example for "
        f"{meaning}: lambda output: {code}."
    )


def _hint(output: Any) -> str:
    """Return a sentence that names the target made for this kind of output, or an empty string."""
    if named(output, "pred_boxes") is not None:
        return (
            "For a detected object, give BoxScores(boxes, labels, read=DetrDetections(size, activation)), with size "
            "(height, width) of the images and activation 'softmax' (DETR) or 'sigmoid' (RT-DETR, D-FINE). "
        )
    if named(output, "masks_queries_logits") is not None:
        return "For the pixels of a class, give MaskScores(mask, class_). "
    for name in EMBEDDINGS:
        if named(output, name) is not None:
            return (
                f"For the embedding {name!r}, give Similarity(embedding), such as that of a text: "
                "Similarity(text_embedding(model, tokens)[0]). "
            )
    for name in _VALUES:
        if (values := named(output, name)) is not None:
            return (
                f"For measured values, give Regression({name!r}), or for a region Regression({name!r}, mask=mask) "
                f"with a mask {tuple(values.shape[-2:])}. "
            )
    return ""


def _list_of_detections(output: Any) -> str | None:
    """Return the key of the scores in a list with one dict per image, the output format of detectors."""
    if not isinstance(output, (list, tuple)) or not output or not all(isinstance(each, dict) for each in output):
        return None
    keys = [key for key, value in output[0].items() if isinstance(value, Tensor) and value.is_floating_point()]
    shared = [key for key in keys if all(key in each for each in output)]
    return next((key for key in ("scores", *shared) if key in shared), None)


def _select_tensor(found: list[tuple[str, Tensor]]) -> tuple[str, Tensor]:
    """Return the best tensor for a score: logits, measured values, class maps, features, vectors, else the last one."""
    rows = [len(tensor) for _, tensor in found]
    count = max(rows, key=rows.count)
    fitting = [(path, tensor) for path, tensor in found if len(tensor) == count]
    for chosen in (
        [each for each in fitting if "logits" in each[0]],
        [each for each in fitting if _own_name(each[0]) in _VALUES],
        [each for each in fitting if _own_name(each[0]) in _CLASS_MAPS],
        # All tokens are preferred to a pooled vector, which may depend only on the class token.
        [each for each in fitting if _own_name(each[0]) == "last_hidden_state"],
        [each for each in fitting if any(word in _own_name(each[0]) for word in _VECTORS)],
        [each for each in fitting if each[1].ndim == 2],
    ):
        if chosen:
            return chosen[0]
    return fitting[-1]


def _own_name(path: str) -> str:
    """Return `out` for `output['out']` and `pooler_output` for `output.pooler_output`."""
    return path.rpartition(".")[2].rpartition("[")[2].strip("]'\"")


def _suggest_score(path: str, tensor: Tensor) -> tuple[str, str]:
    """Return one score per image for a tensor [N, ...], as a description and as code.

    For features this is the strongest one, since the norm of a normalized vector is the same for every image.
    """
    shape, name = tuple(tensor.shape[1:]), _own_name(path)
    vector = any(word in name for word in _VECTORS)
    if not shape:
        return "the value it returns for each image", path
    if name in _VALUES:
        return "the mean of all its values", f"{path}.flatten(1).mean(1)"
    if len(shape) == 1:
        return ("its strongest feature", f"{path}.amax(1)") if vector else ("class 0", f"{path}[:, 0]")
    if len(shape) == 2:
        if "logits" in name:
            return "the highest score of class 0", f"{path}[..., 0].amax(1)"
        return "its strongest feature, over all tokens", f"{path}.mean(1).amax(1)"
    if len(shape) == 3:
        if shape[1:] == (1, 1):
            flat = f"{path}.flatten(1)"
            return ("its strongest feature", f"{flat}.amax(1)") if vector else ("class 0", f"{flat}[:, 0]")
        if "logits" in name or name in _CLASS_MAPS or (path == "output" and shape[0] < shape[1] * shape[2]):
            return "the mean score of class 0", f"{path}[:, 0].mean((1, 2))"
        cells = (1, 2) if shape[2] >= 2 * max(shape[:2]) else (2, 3)
        return "its strongest feature, over all positions", f"{path}.mean({cells}).amax(1)"
    return "the mean of all its values", f"{path}.flatten(1).mean(1)"
