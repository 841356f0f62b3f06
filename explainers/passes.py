"""The few ways through a network that all methods share.

    activations_and_gradients   one forward, one backward down to the layer (the class-activation maps)
    Run.gradient                one forward, one backward down to the input (the input-gradient methods)
    Run.values                  forwards only, of many variants (the perturbation methods)
    Run.branches                one prefix, many edited copies of a layer's output through the rest
    features                    a forward that ends at the layer

None of them touches the model: see network.py for the mode, hooks.py for the hooks.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .errors import BadTarget, ExplainerError, LayerNotFound, LayerRanRepeatedly, NothingSpatial
from .hooks import edit_outputs
from .layers import Place, nothing_spatial, place
from .network import ready
from .records import ran_repeatedly
from .sites import LayerName, frozen_graph
from .targets import Target, TargetLike, evaluate, fix


@dataclass
class Record:
    """What the passes of one call saw on their way, for `explain`: nothing is computed for it."""

    scores: Tensor | None = None
    target: Target | None = None
    target_scores: Tensor | None = None
    gradient_norms: Tensor | None = None
    layer: str | None = None


_record: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


@contextmanager
def recording() -> Iterator[Record]:
    """Collect what the passes inside the block see."""
    record = Record()
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def precise(tensor: Tensor) -> Tensor:
    """Detached, in float32, or in float64 where it is."""
    tensor = tensor.detach()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


@dataclass
class Run:
    """One call: the user's model, the network as it runs, a copy of the images, and the target, once it is fixed."""

    model: nn.Module
    network: nn.Module
    images: Tensor
    wanted: TargetLike
    target: Target | None = field(default=None)

    def forward(self, batch: Tensor) -> Any:
        """The network's output for a batch of variants.

        Traced and exported networks may take no other number of rows than they were made with: the images' own.
        """
        count = len(self.images)
        if len(batch) == count or frozen_graph(self.network) not in ("traced", "exported"):
            return self.network(batch)
        rows = [batch[start : start + count] for start in range(0, len(batch), count)]
        rows[-1] = torch.cat([rows[-1], rows[-1][:1].expand(count - len(rows[-1]), *batch.shape[1:])])
        return torch.cat([self.network(each) for each in rows])[: len(batch)]

    def score(self, output: Any, pictures: Sequence[int] | None = None) -> Tensor:
        """The target's score of each row of an output; `pictures` says which picture a row is a variant of."""
        count = len(self.images)
        if self.target is None:
            self.target = fix(self.wanted, output, count)
        if pictures is not None:
            return evaluate(self.target.rows(pictures), output, len(pictures))
        scores = evaluate(self.target, output, count)
        self._note(output, scores)
        return scores

    def _note(self, output: Any, scores: Tensor) -> None:
        record = _record.get()
        if record is not None and record.scores is None:
            whole = output if isinstance(output, Tensor) else getattr(output, "logits", None)
            record.scores = precise(whole) if isinstance(whole, Tensor) else None
            record.target, record.target_scores = self.target, precise(scores)

    def clean(self) -> Tensor:
        """Scores [N] of the images themselves, without a graph."""
        with torch.no_grad():
            return precise(self.score(self.network(self.images.clone())))

    def values(self, batch: Tensor, pictures: Sequence[int]) -> Tensor:
        """Scores [B] of variants, without a graph; row b is a variant of picture `pictures[b]`."""
        with torch.no_grad():
            return precise(self.score(self.forward(batch), pictures))

    def gradient(
        self, batch: Tensor, pictures: Sequence[int] | None = None, *, rule: Callable[[Tensor], Any] | None = None
    ) -> Tensor:
        """d score / d batch, [B, C, H, W]; `rule` changes this call's backward graph before it runs."""
        with torch.enable_grad():
            leaf = batch.detach().clone().requires_grad_()
            # The network gets a copy: its first operation may work in place, which a leaf does not allow.
            total = self.score(self.forward(leaf.clone()), pictures).sum()
            if not total.requires_grad:
                return precise(torch.zeros_like(batch))
            if rule is not None:
                rule(total)
            (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True)
        found = precise(torch.zeros_like(batch) if gradient is None else gradient)
        if pictures is None:
            note_gradient(found)
        return found


def note_gradient(gradient: Tensor) -> None:
    """Remember the gradient's norm for each picture."""
    record = _record.get()
    if record is not None:
        record.gradient_norms = gradient.flatten(1).norm(dim=1)


@contextmanager
def opened(model: nn.Module, images: Tensor, target: TargetLike = None) -> Iterator[Run]:
    """A `Run` of the model on copies of the images; the caller's gradient mode is back after the block."""
    with torch.inference_mode(False), torch.no_grad():
        yield Run(model, ready(model), images.detach().clone(), target)


@dataclass
class _Cut:
    """What a hook keeps at one layer: its place, its outputs, one for each call."""

    place: Place
    outputs: list[Tensor] = field(default_factory=list)

    def only(self) -> Tensor:
        path = self.place.name
        if not self.outputs:
            raise LayerNotFound(
                f"Layer {path!r} did not run in this forward pass. list_layers(model, images) gives those that do."
            )
        if len(self.outputs) > 1:
            raise LayerRanRepeatedly(ran_repeatedly(path, len(self.outputs)))
        return self.outputs[0]

    def maps(self, tensor: Tensor) -> Tensor:
        maps = self.place.to_maps(precise(tensor))
        if maps.ndim != 4:
            raise NothingSpatial(nothing_spatial(self.place.name, tuple(tensor.shape)))
        return maps


def _tensor(name: str, output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    raise TypeError(
        f"Layer {name!r} gives a {type(output).__name__}, not one tensor. Choose a layer inside it, or one after it, "
        "from list_layers(model, images)."
    )


def activations_and_gradients_of(
    model: nn.Module, images: Tensor, layers: Sequence[LayerName | None], target: TargetLike
) -> dict[str, tuple[Tensor, Tensor]]:
    """Activations A and gradients d score / dA of several layers, each [N, K, h, w], by layer name.

    The network runs without a graph up to the first of the layers. Its output, cut off, becomes the leaf from which the
    graph is built; layers after it are recorded on that graph. One backward pass then serves all, and no parameter
    is asked for a gradient.
    """
    with opened(model, images, target) as run:
        places = [place(run.model, run.images, layer, network=run.network) for layer in layers]
        cuts = {found.name: _Cut(found) for found in places}

        def keep(cut: _Cut, output: Any) -> Tensor:
            tensor = _tensor(cut.place.name, output)
            if not tensor.requires_grad:
                tensor = tensor.detach().requires_grad_()
                torch.set_grad_enabled(True)
            else:
                # A module may hand its very input on (Dropout in eval): the view has the share of this output alone.
                tensor = tensor.view_as(tensor)
            cut.outputs.append(tensor)
            # A clone goes on: what follows may overwrite it (ReLU(inplace=True)), and the record must not change.
            return tensor.clone()

        edits = {name: (lambda output, cut=cut: keep(cut, output)) for name, cut in cuts.items()}
        with torch.no_grad(), edit_outputs(run.network, edits):  # type: ignore[arg-type]
            output = run.network(run.images)
            kept = [cut.only() for cut in cuts.values()]
            total = run.score(output).sum()
            gradients = (
                torch.autograd.grad(total, kept, allow_unused=True) if total.requires_grad else [None] * len(kept)
            )
    found = {}
    for (name, cut), a, g in zip(cuts.items(), kept, gradients, strict=True):
        found[name] = cut.maps(a), cut.maps(torch.zeros_like(a) if g is None else g)
        note_gradient(found[name][1])
        _note_layer(name)
    return found


def _note_layer(name: str) -> None:
    record = _record.get()
    if record is not None:
        record.layer = name


def activations_and_gradients(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Activations A of one layer and d score / dA, both [N, K, h, w] in the layer's own size, float32 or float64."""
    (found,) = activations_and_gradients_of(model, images, [layer], target).values()
    return found


class _Enough(Exception):
    """Ends a forward pass at the layer whose output is all that was asked for."""


def features(model: nn.Module, images: Tensor, layer: LayerName | None) -> Tensor:
    """The layer's output as [N, K, h, w]; the forward pass ends there."""
    with opened(model, images) as run:
        cut = _Cut(place(run.model, run.images, layer, counted=True, network=run.network))

        def keep(output: Any) -> None:
            cut.outputs.append(_tensor(cut.place.name, output).clone())
            raise _Enough

        with edit_outputs(run.network, {cut.place.name: keep}):
            try:
                run.network(run.images)
            except _Enough:
                _note_layer(cut.place.name)
    return cut.maps(cut.only())


@dataclass
class Branches:
    """Edited copies of one layer's output through the rest of the network, for one picture.

    The layers before run once for a whole batch of copies. Where the rest cannot take another batch size than the
    images had, the picture itself is repeated instead.
    """

    run: Run
    picture: int
    place: Place
    repeat: bool = False

    def values(self, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """Scores [count] of the copies that `edit` makes: it gets the output [count, ...] and returns it changed."""
        if not self.repeat:
            try:
                return self._through(1, edit, count)
            except (RuntimeError, ValueError, IndexError) as reason:
                if (isinstance(reason, ExplainerError) and not isinstance(reason, BadTarget)) or "out of memory" in str(
                    reason
                ):
                    raise
                self.repeat = True
        return self._through(count, edit, count)

    def _through(self, rows: int, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        ran = 0

        def branch(output: Any) -> Tensor:
            nonlocal ran
            ran += 1
            if ran > 1:
                raise LayerRanRepeatedly(ran_repeatedly(self.place.name, ran))
            copies = output if rows == count else output.expand(count, *output.shape[1:])
            return edit(copies.clone())

        batch = self.run.images[self.picture : self.picture + 1].expand(rows, -1, -1, -1).clone()
        with torch.no_grad(), edit_outputs(self.run.network, {self.place.name: branch}):
            return precise(self.run.score(self.run.network(batch), [self.picture] * count))


def activation_and_score(run: Run, layer: LayerName | None) -> tuple[Place, Tensor, Tensor]:
    """The layer's place, its output [N, ...] as it is, and the scores [N], from one forward pass."""
    cut = _Cut(place(run.model, run.images, layer, network=run.network))

    def keep(output: Any) -> Tensor:
        cut.outputs.append(_tensor(cut.place.name, output))
        return cut.outputs[-1].clone()

    with edit_outputs(run.network, {cut.place.name: keep}):
        output = run.network(run.images.clone())
    kept = cut.only()
    _note_layer(cut.place.name)
    cut.maps(kept)
    return cut.place, kept, precise(run.score(output))
