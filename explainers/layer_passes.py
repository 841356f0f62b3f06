"""Ways through a network that meet at a layer.

activations_and_gradients   one forward, one backward down to the layer (the class-activation maps)
features                    a forward that ends at the layer
Branches                    one prefix, many edited copies of the layer's output through the rest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .errors import BadTarget, ExplainerError, LayerRanRepeatedly
from .hooks import edit_outputs
from .layers import Place
from .passes import Cut, Run, maps_of, opened, precise, tensor_of
from .recording import note_gradient, note_layer
from .records import ran_repeatedly
from .sites import LayerName
from .targets import TargetLike
from .unread_patches import read_instead


def activations_and_gradients_of(
    model: nn.Module, images: Tensor, layers: Sequence[LayerName | None], target: TargetLike
) -> dict[str, tuple[Tensor, Tensor]]:
    """Activations A of several layers and gradients d score / dA, each [N, K, h, w], by layer name, by `Run.at`.

    Where only the class token of a layer is read, its patches have no gradient at all: the last layer before it whose
    patches count stands in, and a finding says so.
    """
    found = {}
    with opened(model, images, target) as run:
        places = [run.place(layer) for layer in layers]
        both = run.at(places, run.images.clone())
        for asked in places:
            where, (a, g) = read_instead(run, asked, both[asked.name])
            found[asked.name] = maps_of(where, a), maps_of(where, g)
            note_gradient(found[asked.name][1])
            if len(places) == 1:
                note_layer(where.name)
    return found


def activations_and_gradients(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Activations A of one layer and d score / dA, both [N, K, h, w] in the layer's own size, float32 or float64."""
    (found,) = activations_and_gradients_of(model, images, [layer], target).values()
    return found


def features(model: nn.Module, images: Tensor, layer: LayerName | None) -> Tensor:
    """The layer's output as [N, K, h, w]; the forward pass ends there."""
    with opened(model, images) as run:
        where = run.place(layer, counted=True)
        note_layer(where.name)
        return maps_of(where, run.outputs(where, run.images))


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
                return self._once(1, edit, count)
            except (RuntimeError, ValueError, IndexError) as reason:
                if (isinstance(reason, ExplainerError) and not isinstance(reason, BadTarget)) or "out of memory" in str(
                    reason
                ):
                    raise
                self.repeat = True
        return self._once(count, edit, count)

    def _once(self, rows: int, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        ran = 0

        def branch(output: Any) -> Tensor:
            nonlocal ran
            ran += 1
            if ran > 1:
                raise LayerRanRepeatedly(ran_repeatedly(self.place.name, ran))
            copies = output if rows == count else output.expand(count, *output.shape[1:])
            return edit(copies.clone())

        batch = self.run.images[self.picture : self.picture + 1].expand(rows, -1, -1, -1).clone()
        network = self.run.quick(self.place.name)
        with torch.no_grad(), self.run.casting(), edit_outputs(network or self.run.network, {self.place.name: branch}):
            return precise(self.run.score(self.run.forward(batch, network), [self.picture] * count))


def activation_and_score(run: Run, layer: LayerName | None) -> tuple[Place, Tensor, Tensor]:
    """The layer's place, its output [N, ...] as it is, and the scores [N], from one forward pass."""
    run.refuse_through()
    cut = Cut(run.place(layer))

    def keep(output: Any) -> Tensor:
        cut.outputs.append(tensor_of(cut.place.name, output))
        return cut.outputs[-1].clone()

    with edit_outputs(run.network, {cut.place.name: keep}):
        output = run.forward(run.images.clone())
    kept = cut.only()
    note_layer(cut.place.name)
    maps_of(cut.place, kept)
    return cut.place, kept, precise(run.score(output))
