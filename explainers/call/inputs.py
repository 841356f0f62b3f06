"""Networks with several images as input: `saliency(model, (image, depth))`.

All passes run on one tensor of images. Either it contains all inputs side by side (`Packing`), so that they are
attributed together and the result is split into one part for each; or it is one of the inputs, and the others keep
their values (`OneInput`). To all passes the wrapper is an ordinary module from images to output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.forward_wrapper import ForwardWrapper, weak_reference
from explainers.call.images import validate_images
from explainers.errors import BadImages, BadOption, errors_of, no_module, shorten
from explainers.hooks.distributed import refuse_sharded_call
from explainers.hooks.locate import unwrap


def inputs_of(images: Any) -> tuple[Tensor, ...] | None:
    """Return the images if they are several inputs of a network, else None."""
    return images if isinstance(images, tuple) else None


@dataclass(frozen=True)
class Packing:
    """Several inputs as one tensor: stacked along the channels if they have the same sides, else [N, values, 1, 1].

    `shapes` are those of one row of each input.
    """

    shapes: tuple[tuple[int, ...], ...]

    @property
    def has_equal_sides(self) -> bool:
        """Whether all inputs have the same height and width, and the same number of frames."""
        return len({shape[1:] for shape in self.shapes}) == 1

    def pack(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the inputs as one tensor."""
        if self.has_equal_sides:
            return torch.cat(list(inputs), 1)
        return torch.cat([each.flatten(1) for each in inputs], 1)[..., None, None]

    def split(self, packed: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs in a packed tensor, or the part of each in an attribution of it."""
        parts, start = [], 0
        for shape in self.shapes:
            count = shape[0] if self.has_equal_sides else torch.Size(shape).numel()
            parts.append(packed.narrow(1, start, count).reshape(len(packed), *shape).contiguous())
            start += count
        return tuple(parts)

    def fits(self, images: Tensor) -> bool:
        """Return whether the images have the shape of packed inputs."""
        channels = sum(shape[0] if self.has_equal_sides else torch.Size(shape).numel() for shape in self.shapes)
        sides = self.shapes[0][1:] if self.has_equal_sides else (1, 1)
        return tuple(images.shape[1:]) == (channels, *sides)

    def map(self, function: Callable[[Tensor], Tensor], packed: Tensor) -> Tensor:
        """Return the function's value for each input, expanded to its shape, as one tensor."""
        return self.pack([function(own).expand_as(own) for own in self.split(packed)])

    __call__ = split

    @property
    def key(self) -> Any:
        """What distinguishes the wrapper in caches."""
        return self.shapes


@dataclass(frozen=True, eq=False)
class OneInput:
    """The input at `index`, with `others`, one row of each other input, in their order."""

    index: int
    others: tuple[Tensor, ...]

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all inputs; copies, because the network may modify them in place."""
        rows = [other.expand(len(images), *other.shape[1:]).clone() for other in self.others]
        return (*rows[: self.index], images, *rows[self.index :])

    @property
    def key(self) -> Any:
        """What distinguishes the wrapper in caches."""
        return self.index, tuple(other.shape for other in self.others)


class SeveralInputs(ForwardWrapper):
    """A model with several inputs, as a function of the tensor that `arrange` converts to them.

    `given` is the user's function of all inputs, or None: then the model runs, or its private copy.
    """

    arrange: Packing | OneInput
    given: Callable[..., Any] | None

    def __init__(
        self, model: nn.Module, given: Callable[..., Any] | None, count: int, arrange: Packing | OneInput
    ) -> None:
        super().__init__(model, lambda images: (given or model)(*arrange(images)), count)
        self.__dict__.update(arrange=arrange, given=given, runs_own_forward=given is None)

    @property
    def cache_key(self) -> Any:
        """A cache key that does not keep the function alive."""
        return self.arrange.key, None if self.given is None else weak_reference(self.given)

    def split(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Return the part of each input in an attribution of all of them."""
        assert isinstance(self.arrange, Packing), "the inputs are in one tensor"
        return self.arrange.split(whole)

    def around(self, network: nn.Module) -> SeveralInputs:
        """Return the same wrapper of a private copy."""
        return SeveralInputs.of(network, None, self.count, self.arrange)

    def forward(self, images: Tensor) -> Any:
        """Return the output of the model, or of the user's function."""
        return self.inner(*self.arrange(images)) if self.given is None else super().forward(images)

    def check_variants(self, images: Tensor) -> None:
        """Check how variants can run if a function of the user runs them."""
        if self.given is not None:
            super().check_variants(images)


def with_inputs(
    model: nn.Module, forward: Callable[..., Any] | None, count: int, arrange: Packing | OneInput
) -> SeveralInputs:
    """Return the model, run by `forward` if given, as a function of one tensor of `count` images.

    Errors   BadOption, UnsupportedModel
    """
    refuse_sharded_call(model, "Several inputs need")
    return SeveralInputs.of(unwrap(model), forward, count, arrange)


def check_inputs(model: nn.Module, inputs: tuple[Tensor, ...], forward: Callable[..., Any] | None) -> None:
    """Check that each input is a batch of images, that they belong together, and that the network takes them.

    Errors   WrongType, BadImages, BadOption
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    if not inputs:
        raise BadImages("images is an empty tuple. Give one tensor for each input of the network: (images, depth).")
    for index, each in enumerate(inputs):
        with errors_of(f"Input {index} of {len(inputs)}"):
            validate_images(model, each)
    for what, values in (
        ("images", [len(each) for each in inputs]),
        ("devices", [str(each.device) for each in inputs]),
        ("types", [str(each.dtype) for each in inputs]),
    ):
        if len(set(values)) > 1:
            given = f"{', '.join(map(str, values[:-1]))} and {values[-1]}"
            how = "number of images" if what == "images" else f"one of the {what}"
            detail = f"{given} images" if what == "images" else given
            raise BadImages(f"The {len(inputs)} inputs have {detail}. Give all of them the same {how}.")
    _check_call(model, inputs, forward)


def _check_call(model: nn.Module, inputs: tuple[Tensor, ...], forward: Callable[..., Any] | None) -> None:
    """Check that the function of the user, or the network, takes as many inputs.

    Errors   BadOption, BadImages
    """
    if forward is not None and (not callable(forward) or isinstance(forward, type)):
        raise BadOption(
            f"Invalid forward={shorten(forward)}. Pass a function that takes all inputs and returns the model's "
            "output, for example forward=lambda a, b: model(a, depth=b)."
        )
    network = unwrap(model)
    try:
        inspect.signature(forward or network.forward).bind(*inputs)
    except TypeError as error:
        count = len(inputs)
        names = ", ".join("abcdefghijklmnopqrstuvwxyz"[:count])
        if forward is not None:
            raise BadOption(
                f"forward= does not take {count} inputs: {error}. Pass a function of as many tensors as the tuple has, "
                f"for example forward=lambda {names}: model({names})."
            ) from error
        raise BadImages(
            f"The forward pass of this {type(network).__name__} does not take {count} inputs: {error}. Give one tensor "
            f"for each, or say how to run it: forward=lambda {names}: model([{names}])."
        ) from error
    except ValueError:  # compiled code without a signature
        return
