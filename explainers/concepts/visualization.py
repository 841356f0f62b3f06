"""`feature_visualization`: images to which a unit, a direction, a concept or a class responds most."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import check_images
from explainers.call.loop import Progress
from explainers.call.run import Run, open_run
from explainers.concepts.image_parameters import Pixels, Transform, magnitude_of, natural_magnitude
from explainers.concepts.resuming import check_resume, report_part
from explainers.derived_targets import LayerTarget, Unit
from explainers.display.display import Display, Displayed, image_address, paragraphs
from explainers.errors import BadOption, BadTarget, check_type, no_module, shorten
from explainers.maps.arrays import pixels, to_pillow
from explainers.options import LayerName, check_finite, check_keywords, whole_number, whole_numbers
from explainers.rules.rectifiers.before_activation import BeforeActivation
from explainers.targets import Target, as_target

IMAGES = ("fourier", "maco")
_RATES = {"fourier": 0.05, "maco": 0.15}
"""Step size of Adam for the parameters of each kind of image."""


@dataclass(frozen=True, eq=False)
class FeatureVisualization(Displayed):
    """The result of `feature_visualization`: `images` [N, C, H, W] in [0, 1] for a `target`.

    `activations` [N] are their scores, `curve` [steps, N] those of the transformed images during the optimization.
    `influence` [N, H, W] is the sum of the size of the gradient over all steps: where it is low, the network does not
    read the image. `finished` is False if the optimization was stopped early after `steps`.
    """

    target: Target
    images: Tensor
    activations: Tensor
    curve: Tensor
    influence: Tensor
    steps: int
    finished: bool
    state: dict[str, Any] = field(repr=False)

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the images."""
        single = self.images if self.images.shape[1] == 3 else self.images.mean(1)
        shown = [to_pillow(pixels(each.clamp(0, 1))) for each in single.float()]
        tags = "".join(f'<img src="{image_address(each)}" alt="synthetic image">' for each in shown)
        return Display(paragraphs([repr(self)]) + tags, repr(self), shown)

    def __repr__(self) -> str:
        n, scores = len(self.images), ", ".join(f"{float(score):.3g}" for score in self.activations[:4])
        stopped = "" if self.finished else ", stopped early"
        return (
            f"FeatureVisualization({n} image{'s' * (n != 1)} of {self.target!r} with score {scores}"
            f"{', ...' * (n > 4)} after {self.steps} steps{stopped})"
        )


@dataclass(frozen=True)
class _Diversity(LayerTarget):
    """How little the images of a batch have in common: minus the mean similarity of their Gram matrices at a layer.

    Source   Olah et al. 2017, section "Diversity", doi:10.23915/distill.00007
    """

    layer: LayerName | None  # type: ignore[assignment]  # None: the default layer
    at: tuple[int, ...] | str | None = None
    cells: tuple[tuple[int, ...], ...] = ()

    def __call__(self, output: Any) -> Tensor:
        """Return the values [N], from -1 to 1."""
        cells = output.flatten(2) if output.ndim > 2 else output[:, :, None]
        grams = nn.functional.normalize((cells @ cells.transpose(1, 2)).flatten(1), dim=1)
        similarity = grams @ grams.T
        return (similarity.diagonal() - similarity.sum(1)) / max(1, len(output) - 1)

    def values(self, maps: Tensor) -> Tensor:
        return maps.mean(1)


@check_keywords
@torch.inference_mode(False)
def feature_visualization(
    model: nn.Module,
    target: Any,
    *,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    size: tuple[int, int] = (224, 224),
    images: int = 1,
    steps: int = 256,
    image: str = "fourier",
    natural_images: Tensor | None = None,
    decorrelate: bool = True,
    transform: Transform = Transform(),  # noqa: B008  # frozen
    diversity: float = 0.0,
    seed: int = 0,
    resume: FeatureVisualization | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> FeatureVisualization:
    """Create images that maximize the score of a target: a unit, a direction or concept of a layer, or a class.

    An image x in [0, 1] is given to the model as (x - mean) / std, with its random `transform` in each step. Adam
    changes its parameters, which are

        "fourier"   the Fourier coefficients
        "maco"      only their phases. The magnitudes are the mean of `natural_images` [M, C, H, W] in [0, 1], of the
                    same size, or without them inversely proportional to the frequency

    of colors without correlation if `decorrelate` (of three channels). `mean` and `std` are those by which you
    normalize images, one number or one for each channel. `diversity` is the weight of the difference between several
    `images`, compared with that of the score. It is measured at the layer of the target, or at the default layer.

    The gradient of a unit skips the activation function of its layer, because a unit is often silent on noise.

    `progress` gets the images so far as `map`. If it returns False, or after `budget` seconds, the optimization stops;
    `resume`, with the same arguments, continues it, and the result is the same as without a stop. More `steps` than
    before are allowed. The same `seed` has the same images.

    Returns  a `FeatureVisualization`
    Errors   BadOption for an invalid option, or a `resume` with other arguments; BadTarget; LayerNotFound,
             LayerRanRepeatedly, UnsupportedModel
    Source   Olah et al. 2017, doi:10.23915/distill.00007; Fel et al. 2023 (MaCo), arXiv:2306.06805

    Example
        >>> found = feature_visualization(model, unit("layer4", 17), mean=0.5, std=0.2, size=(64, 64), steps=2)
        >>> found.images.shape
        torch.Size([1, 3, 64, 64])
    """
    weight = _weight_of(model)
    settings = {
        "size": whole_numbers(size), "images": images, "image": image, "decorrelate": decorrelate, "seed": seed,
        "transform": transform, "diversity": diversity, "mean": _floats("mean", mean), "std": _floats("std", std),
    }  # fmt: skip
    _check_settings(settings, steps, target, resume)
    target = as_target(target, images)
    kind = _pixels_of(settings, natural_images, weight.device)
    ascent = _Ascent(kind, settings, weight, None if resume is None else resume.state)
    with ExitStack() as stack:
        cost = {"progress": report_part(progress), "budget": budget}
        first = ascent.normalized(ascent.shown())
        check_images(model, first)
        visible = target
        if type(target) is Unit:  # it is often silent on noise, where a ReLU has no gradient
            visible = BeforeActivation(target.layer, target.channel, target.at)
        run = stack.enter_context(open_run(model, first, visible, many=True, cost=cost))
        run.scoring.score_inputs()
        runs = [run]
        if diversity and images > 1:
            layer = target.layer if isinstance(target, LayerTarget) else None
            runs.append(stack.enter_context(open_run(model, first, _Diversity(layer), several=True)))
        if steps > ascent.done:
            run.loop.run(steps - ascent.done, 1, lambda _: ascent.step(runs), ascent.shown)
        shown = ascent.shown()
        activations = run.scoring.values(ascent.normalized(shown), range(images))
    curve = torch.stack(ascent.curve) if ascent.curve else activations.new_zeros(0, images)
    state = ascent.state | {"settings": settings}
    return FeatureVisualization(
        target, shown, activations, curve, ascent.influence, ascent.done, ascent.done >= steps, state
    )


class _Ascent:
    """The optimization of the parameters of images."""

    def __init__(self, pixels: Pixels, settings: dict[str, Any], weight: Tensor, state: dict[str, Any] | None) -> None:
        self.pixels, self.settings, self.dtype = pixels, settings, weight.dtype
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.mean, self.std = (
            torch.tensor(settings[name], dtype=wide, device=weight.device).view(-1, 1, 1) for name in ("mean", "std")
        )
        self.done, self.curve = 0, list[Tensor]()
        count = settings["images"]
        self.influence = torch.zeros(count, *pixels.size, dtype=wide, device=weight.device)
        start = pixels.start(count, settings["seed"], weight.device).to(wide)
        if state is not None:
            start, self.done, self.curve = state["parameters"], state["done"], list(state["curve"])
            self.influence = state["influence"].clone()
        self.parameters = start.detach().clone().requires_grad_()
        self.optimizer = torch.optim.Adam([self.parameters], lr=_RATES[settings["image"]])
        if state is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # Adam updates its tensors in place

    @property
    def state(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters.detach(), "done": self.done, "curve": self.curve,
            "influence": self.influence, "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip

    def shown(self) -> Tensor:
        """Return the images so far, [N, C, H, W] in [0, 1]."""
        return self.pixels.images(self.parameters.detach())

    def normalized(self, images: Tensor) -> Tensor:
        """Return the images as the network receives them."""
        return ((images - self.mean) / self.std).to(self.dtype)

    def step(self, runs: Sequence[Run]) -> None:
        """Make one step with the gradient of the score in the first run, and that of the diversity in the second."""
        rows = range(self.settings["images"])
        with torch.enable_grad():
            images = self.pixels.images(self.parameters)
            batch = self.normalized(self.settings["transform"](images, self.settings["seed"], self.done))
        scores, gradient = runs[0].backward.scores_and_gradient(batch.detach(), rows)
        for run in runs[1:]:
            other = run.backward.gradient(batch.detach(), rows)
            gradient = gradient + self.settings["diversity"] * other * gradient.norm() / other.norm().clamp(min=1e-30)
        of_images, of_parameters = torch.autograd.grad(batch, [images, self.parameters], gradient.to(batch))
        self.influence += of_images.abs().sum(1)
        self.parameters.grad = -of_parameters
        self.optimizer.step()
        self.curve.append(scores)
        self.done += 1


def _weight_of(model: nn.Module) -> Tensor:
    """Return a tensor with the device and the dtype of the model's images.

    Errors   WrongType
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    weight = next((each for each in model.parameters() if each.is_floating_point()), None)
    return torch.empty(0) if weight is None else weight.detach()


def _floats(name: str, given: Any) -> tuple[float, ...]:
    """Return one number for each channel, three if one number is given.

    Errors   BadOption
    """
    values = given.tolist() if isinstance(given, Tensor) else given
    numbers = tuple(values) if isinstance(values, (list, tuple)) else (values,) * 3
    is_valid = all(isinstance(each, (int, float)) and abs(each) < float("inf") for each in numbers)
    if not numbers or not is_valid or (name == "std" and min(numbers) <= 0):
        above = " above 0" if name == "std" else ""
        raise BadOption(
            f"{name}={shorten(given)} is not valid. Give one finite number{above}, or one for each channel."
        )
    return tuple(map(float, numbers))


def _check_settings(settings: dict[str, Any], steps: int, target: Any, resume: FeatureVisualization | None) -> None:
    """Check the options of `feature_visualization`.

    Errors   BadOption, BadTarget
    """
    if target is None:
        raise BadTarget("target is None, but images are created for a target. Give a class, or unit(layer, channel).")
    if settings["image"] not in IMAGES:
        raise BadOption(f"image={shorten(settings['image'])} is not valid. Choose one of {', '.join(IMAGES)}.")
    sides = settings["size"]
    if sides is None or len(sides) != 2 or min(sides) < 8:
        raise BadOption("size is not valid. Give (height, width), each an integer of at least 8.")
    for name, value, least in (("images", settings["images"], 1), ("steps", steps, 1), ("seed", settings["seed"], 0)):
        number = whole_number(value)
        if number is None or not least <= number < 2**31:
            raise BadOption(f"{name}={shorten(value)} is not valid. Give an integer of at least {least}.")
    check_finite("diversity", settings["diversity"], "a number of at least 0", least=0)
    if len(settings["mean"]) != len(settings["std"]):
        raise BadOption("mean and std have different numbers of channels. Give one number for each channel in both.")
    check_type("transform", settings["transform"], Transform, "Transform(jitter, rotate, scale)")
    check_resume(resume, FeatureVisualization, "feature_visualization", settings)


def _pixels_of(settings: dict[str, Any], natural_images: Tensor | None, device: torch.device) -> Pixels:
    """Return the kind of image for these settings.

    Errors   BadOption
    """
    size, channels = settings["size"], len(settings["mean"])
    decorrelate = settings["decorrelate"] and channels == 3
    magnitude = None
    if settings["image"] != "maco" and natural_images is not None:
        raise BadOption("natural_images has no effect without image='maco'. Omit it, or choose that kind of image.")
    if settings["image"] == "maco":
        magnitude = natural_magnitude(size, channels, device)
        if natural_images is not None:
            check_type("natural_images", natural_images, Tensor, "images [M, C, H, W] in [0, 1]")
            if natural_images.ndim != 4 or tuple(natural_images.shape[1:]) != (channels, *size):
                raise BadOption(
                    f"natural_images has shape {tuple(natural_images.shape)}. Give images [M, {channels}, {size[0]}, "
                    f"{size[1]}] in [0, 1]."
                )
            magnitude = magnitude_of(natural_images.to(device), decorrelate)
    return Pixels(size, channels, decorrelate, magnitude)
