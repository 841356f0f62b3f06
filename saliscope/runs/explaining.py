"""Compute the rows of a decoded batch: predictions, scores and maps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import explainers
from explainers import Similarity, declared_score, probabilities_of
from saliscope.errors import Refused
from saliscope.runs.decoding import DecodedBatch
from saliscope.runs.items import Item, reason_of
from saliscope.runs.settings import LABEL, PREDICTED, WRONG, Classes, Settings
from saliscope.zoo import Model, devices, text
from saliscope.zoo.text import Sentences

TOP = 5
ROWS = 16
"""Rows per pass of a long method. The number is fixed, because another number could change the last bits of a map."""
LOWEST, HIGHEST = -6, 14
"""Powers of two between which the largest value of a map is stored without scaling: float16 ends at 65,504, and has its
full precision of eleven bits only above 6e-5.
"""


def find_sentences(settings: Settings, model: Model) -> Sentences | None:
    """Return the sentences in the target of a run, or None for a network with classes.

    Errors   Refused for a target or a filter that needs classes, and for more than two sentences
    """
    if model.tokenize is None:
        return None
    why = f"{model.name} compares images with sentences and has no classes."
    if settings.where == WRONG:
        raise Refused(f"The filter wrong needs classes, but {why} Omit it.")
    if settings.target in (PREDICTED, LABEL):
        raise Refused(f'{why} Use a sentence as the target, "a photo of a dog", or two: "a photo of a dog | a cat".')
    with _refuse_bad_sentences():
        found = text.parse(settings.target)
    if found is None:
        raise Refused('The target is empty. Use a sentence, such as "a photo of a dog".')
    return found


def embed(model: Model, sentences: Sentences) -> tuple[list[Tensor], Similarity]:
    """Return the embeddings of the sentences, and the target for them.

    Errors   Refused for a sentence that the text encoder cannot embed, and for two with the same embedding
    """
    with _refuse_bad_sentences():
        vectors = [text.embedding(model, sentence) for sentence in sentences.listed]
        return vectors, text.target_of(vectors, sentences)


@contextmanager
def _refuse_bad_sentences() -> Iterator[None]:
    try:
        yield
    except text.BadSentence as error:
        raise Refused(f"{error}.") from None


class Explainer:
    """A network and the settings of a run. Call it with decoded batches."""

    def __init__(self, model: Model, settings: Settings, device: str = "cpu") -> None:
        """Check the settings, and move the network to the device.

        Errors   Refused
        """
        self.model, self.settings, self.classes = model, settings, Classes(model.labels)
        self.sentences = find_sentences(self.settings, self.model)
        self.device = str(devices.choose(device))
        self.network = self.model.network.to(self.device)
        self.options = self.settings.method_options()
        long = explainers.METHODS[self.settings.method].long
        self.steady: dict[str, Any] = {"batch_size": max(1, ROWS // self.settings.batch_size)} if long else {}
        self.vectors: list[Tensor] = []
        self.fixed: int | Similarity | None = None
        """The class or the similarity that all maps explain, or None if the class depends on the image."""
        name = self.settings.target
        if self.sentences:
            self.vectors, self.fixed = embed(self.model, self.sentences)
        elif name not in (PREDICTED, LABEL):
            self.fixed = self.classes.find(name)
            if self.fixed is None:
                near = self.classes.near(name)
                raise Refused(
                    f"Target {name!r} is not a class of {self.model.name}. {near}Use predicted, label, or a class."
                )

    def check(self) -> None:
        """Explain a noise image, so that an unsuitable layer or network is reported before the first image.

        Errors   Refused, and those of `explainers`
        """
        if why := explainers.METHODS[self.settings.method].applies(self.network, self.settings.layer):
            raise Refused(why)
        shape = 1, self.model.channels, *self.model.size
        noise = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        short: dict[str, Any] = {"budget": 1e-3} if self.steady else {}
        options = {**self.steady, **self.options, **short}
        with declared_score(self.model.score):
            explainers.explain(self.settings.method, self.network, noise, self.fixed, compare=False, **options)

    def __call__(self, batch: DecodedBatch) -> list[dict[str, Any]]:
        """Return the rows of a batch in order; with `where="wrong"`, only rows of wrong predictions and of errors.

        An image that cannot be explained has a row with the error, as an image that cannot be read.

        Errors   those of `explainers` that do not depend on the image
        """
        start = time.perf_counter()
        images = devices.move(batch.images, torch.device(self.device))
        readable = [item for item, error in zip(batch.items, batch.errors, strict=True) if error is None]
        found = self._rows_or_errors(images, readable) if readable else []
        seconds = (time.perf_counter() - start) / max(1, sum(row is not None for row in found))
        rows, computed = [], iter(found)
        for item, digest, error in zip(batch.items, batch.hashes, batch.errors, strict=True):
            row = next(computed) if error is None else _error_row(item, error)
            if row is not None:
                rows.append(row | ({} if "error" in row else {"seconds": seconds}) | {"sha256": digest})
        return rows

    def _rows_or_errors(self, images: Tensor, items: Sequence[Item]) -> list[dict[str, Any] | None]:
        """Return a row for each image, None for those that `where` leaves out.

        If the batch fails, its images are explained one by one.
        """
        try:
            return self._rows(images, items)
        except (Refused, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the network is the user's own code
            if len(items) > 1:
                parts = [self._rows_or_errors(images[k : k + 1], [item]) for k, item in enumerate(items)]
                return [row for part in parts for row in part]
            self.check()  # raises if other images fail too, for example because the device does not respond
            return [_error_row(items[0], f"Cannot explain the image: {reason_of(error)}.")]

    def _rows(self, images: Tensor, items: Sequence[Item]) -> list[dict[str, Any] | None]:
        labels = [self.classes.find(item.label) for item in items]
        chosen = [*range(len(items))]
        if self.settings.where == WRONG:
            predicted = self._scores(images).argmax(1).tolist()
            chosen = [k for k in chosen if labels[k] not in (None, predicted[k])]
        by_label = [k for k in chosen if self.settings.target == LABEL and labels[k] is not None]
        rows: list[dict[str, Any] | None] = [None] * len(items)
        for part in (by_label, [k for k in chosen if k not in by_label]):
            own = [labels[k] for k in part]
            target: Any = own if part is by_label else self.fixed
            found = self._explain(images[part], [items[k] for k in part], own, target) if part else []
            for k, row in zip(part, found, strict=True):
                rows[k] = row
        return rows

    def _scores(self, images: Tensor, output: Tensor | None = None) -> Tensor:
        """Return the scores [N, K] of classes, or the similarities to the sentences; `output` is known with a map."""
        if output is None or output.ndim != 2:
            with torch.inference_mode():
                output = self.network(images)
                output = getattr(output, "logits", output).float()
        return text.similarities(output, self.vectors) if self.vectors else output

    def _best(self, scores: Tensor) -> tuple[list[list[int]], Tensor | None]:
        """Return the top classes of each image, and the probabilities [N, K] of the classes if there are any."""
        kind = self.model.score_kind
        # The sigmoid of several confident labels is 1 in float32, which would hide their order.
        probabilities = probabilities_of(scores.double() if kind == "sigmoid" else scores, kind)
        ordered = scores if probabilities is None else probabilities
        return ordered.topk(min(TOP, scores.shape[1]), dim=1).indices.tolist(), probabilities

    def _explain(
        self,
        images: Tensor,
        items: Sequence[Item],
        labels: Sequence[int | None],
        target: int | list[int] | Similarity | None,
    ) -> list[dict[str, Any]]:
        with declared_score(self.model.score):
            explanation = explainers.explain(
                self.settings.method, self.network, images, target, compare=False, **self.steady, **self.options
            )
        scores = self._scores(images, explanation.scores).float().cpu()
        best, probabilities = self._best(scores)
        maps, scales = _to_float16(explanation.placed.float().cpu())
        targets = explanation.target if isinstance(explanation.target, list) else None
        rows = []
        for k, item in enumerate(items):
            top: list[dict[str, Any]] = [
                {"class": self._name(index), "index": index, "probability": _one(probabilities, k, index)}
                for index in best[k]
            ]
            first, label = top[0]["index"], labels[k]
            explained = targets[k] if targets else 0 if self.sentences else first
            rows.append(
                {
                    "path": item.path,
                    "label": item.label,
                    "label_index": label,
                    "label_probability": None if label is None else _one(probabilities, k, label),
                    "prediction": top[0]["class"],
                    "prediction_index": first,
                    "probability": top[0]["probability"],
                    "correct": None if label is None else label == first,
                    "top5": top,
                    "target": self.sentences.name if self.sentences else self._name(explained),
                    "target_index": explained,
                    "score": float(scores[k, 0] - scores[k, 1:].sum() if self.sentences else scores[k, explained]),
                    "statistics": _numbers(explanation.statistics[k]),
                    "findings": [finding.code for finding in explanation.findings[k]],
                    "finding_texts": [finding.sentence for finding in explanation.findings[k]],
                    "device": explanation.device,
                    "map": maps[k].contiguous().numpy().astype("<f2").tobytes(),
                    "map_scale": float(scales[k]),
                    "map_height": maps.shape[1],
                    "map_width": maps.shape[2],
                }
            )
        return rows

    def _name(self, index: int) -> str:
        """Return the name of a class, or a sentence."""
        return self.sentences.listed[index] if self.sentences else self.classes.name(index)


def _error_row(item: Item, error: str) -> dict[str, Any]:
    return {"path": item.path, "label": item.label, "error": error}


def _one(probabilities: Tensor | None, row: int, index: int) -> float | None:
    return None if probabilities is None else float(probabilities[row, index])


def _to_float16(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return maps [N, h, w] as float16 and their scales: 1, or a power of two for values outside the float16 range."""
    largest = maps.abs().nan_to_num(0, 0, 0).amax((1, 2))
    power = torch.where(largest > 0, largest, 1.0).log2().floor()
    scales = torch.where((power < LOWEST) | (power > HIGHEST), 2.0**power, 1.0)
    return (maps / scales[:, None, None]).to(torch.float16), scales


def _numbers(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    numbers = ((name, value) for name, value in statistics.items() if isinstance(value, (int, float)))
    return [{"name": name, "value": float(value)} for name, value in numbers]
