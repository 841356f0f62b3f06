"""Wrong uses of metrics, maps, experiments and of what a layer represents are refused without side effects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

import explainers
from explainers import BadImages, BadOption, BadTarget, LayerNotFound
from explainers.concepts.names import name_units
from explainers.explanation.smoothing import Augment, smooth
from explainers.maps.color_maps import color_map
from explainers.maps.overlays import overlay
from explainers.maps.resize import rank_correlation, resize
from explainers.placement import Placement
from tests.explainers.contract.test_wrong_uses import INF, NAN, Counting, Row, check, zeros
from tests.support.nets import Twice, plain, random_images, settle
from tests.support.traces import nothing_left

MAPS = torch.rand(3, 4, 4)
ARRAY = torch.rand(3, 6, 8).numpy()
TWICE = settle(Twice().double())


def intervened(error: str, **changed: Any) -> Row:
    """An intervention on a layer with 6 channels and a grid of 12 x 16."""
    return lambda n, x: explainers.intervene(n, x, **{"layer": "net.conv1", **changed}), BadOption, error


def erased(error: str, maps: Any = MAPS, **changed: Any) -> Row:
    return lambda n, x: explainers.smallest_region(n, x, maps, **changed), BadOption, error


def traced(error: str, image: int | slice = slice(0, 1), kind: type[Exception] = BadOption, **changed: Any) -> Row:
    given = {"layer": "net.conv1", "channel": 0, "cell": (0, 0)} | changed
    return lambda n, x: explainers.trace_value(n, x[image], **given), kind, error


def compared(error: str, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    return lambda n, x: explainers.compare_models(n, **{"model_b": n, "images": x, **changed}), kind, error


def indexed(error: str, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    return lambda n, x: explainers.index_units(n, **{"images": x, "layers": "net.conv1", **changed}), kind, error


def named(error: str, values: Any, labels: Any = ("cat",) * 3, kind: type[Exception] = BadOption, **other: Any) -> Row:
    return lambda n, x: name_units(values, labels, **other), kind, error


def visualized(error: str, target: Any = 1, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    given = {"mean": 0.4, "std": 0.3, "size": (12, 16), "steps": 6} | changed
    return lambda n, x: explainers.feature_visualization(n, target, **given), kind, error


EXPERIMENTS: list[Row] = [
    intervened("Channel 6 does not exist: layer 'net.conv1' has channels 0 to 5", channels=6),
    intervened("channels is empty", channels=[]),
    intervened("cells is empty", cells=[]),
    intervened(r"the layer has a grid of \(12, 16\)", cells=torch.ones(5, 8, dtype=torch.bool)),
    intervened("does not exist", cells=[(0, -1)]),
    intervened("Cell 3 does not exist", cells=[3]),
    intervened(r"cells=tensor\(3\)", cells=torch.tensor(3)),
    intervened("value=nan", value=NAN),
    intervened("value=True", value=True),
    intervened("does not broadcast", value=torch.zeros(5, 1, 1)),
    intervened("not finite", value=torch.full((1, 1, 1), INF)),
    intervened("must return a tensor of the same shape", value=lambda a: a[:, :1]),
    intervened("The function returned an int", value=lambda a: 3),
    intervened("Resize them to the same size", value=explainers.Swap(zeros(1, 3, 5, 5))),
    intervened("Give one, or one for each", value=explainers.Swap(zeros(2, 3, 12, 16))),
    intervened("finite floating-point", value=explainers.Swap(torch.zeros(1, 3, 12, 16, dtype=torch.uint8))),
    intervened("score='soft'", score="soft"),
    *((lambda n, x, make=make: make(), BadOption, "") for make in (  # type: ignore[misc]
        explainers.Clamp, lambda: explainers.Clamp(2, 1), lambda: explainers.Scale(INF),
        lambda: explainers.AddNoise(-1), lambda: explainers.Swap(3),
    )),
    (lambda n, x: explainers.patch_effects(n, x, zeros(1, 3, 5, 5), layer="net.conv1"), BadOption, "Resize them"),
    (lambda n, x: explainers.patch_effects(n, x, x, layer="net.head"), explainers.NoSpatialOutput, "head"),
    (lambda n, x: explainers.intervene(n, x, "net.conv"), LayerNotFound, "Did you mean .*'net.conv1'"),
    (lambda n, x: explainers.intervene(TWICE, x, "relu"), explainers.LayerRanRepeatedly, "Name the"),
    erased("constant", torch.ones(3, 4, 4)),
    erased("not finite", torch.full((3, 4, 4), NAN)),
    *(erased("one map", maps) for maps in (torch.rand(4, 4, 4), torch.rand(3, 3, 4, 4), 1.5)),
    erased("Unknown method 'map'", "map"),
    erased("goal='remove'", goal="remove"),
    erased("goal=array", goal=ARRAY),
    erased("baseline", baseline="sharpen"),
    erased("needs probabilities", goal="half", score="logit"),
    traced("channel=6 does not exist: layer 'net.conv1' has channels 0 to 5", channel=6),
    traced(r"has a grid of \(12, 16\)", cell=(12, 0)),
    traced("Cell 3 does not exist", cell=3),
    traced("head", kind=explainers.NoSpatialOutput, layer="net.head"),
    traced("Give one image", slice(0, 2), BadImages),
    compared("has 3 images and images_b has 2", BadImages, images_b=random_images(2)),
    compared("7 and 3 classes", BadTarget, model_b=plain(classes=3)),
    compared("does not return maps", method="channel_effects"),
    compared("tolerance=-1", tolerance=-1),
    indexed("no image", BadImages, images=[]),
    indexed("tensor", explainers.WrongType, images="photos"),
    indexed("shape", BadImages, images=torch.zeros(2, 3, 12)),
    indexed("one size", BadImages, images=[zeros(1, 3, 8, 8), zeros(1, 3, 9, 8)]),
    indexed("positions", BadImages, images=[(zeros(2, 3, 8, 8), [1])]),
    indexed("layers", explainers.WrongType, layers=[]),
    indexed("net.conv1", LayerNotFound, layers="net.conv9"),
    indexed("head", explainers.NoSpatialOutput, layers="net.head"),
    indexed("top=0", top=0),
    indexed("cat", effects="cat"),
    indexed("effects", effects=[1, 2]),
    indexed("effects=array", effects=ARRAY),
    *((lambda n, x, g=given: explainers.tcav(n, x, 0, **g), BadOption, "is not valid. Give images") for given in (  # type: ignore[misc]
        {"concept_images": zeros(), "random_images": zeros(9, 3, 12, 16)},
        {"concept_images": zeros(2, 3, 12, 16), "random_images": zeros()},
    )),
    indexed("tops", tops=3),
    (lambda n, x: explainers.find_concepts(n, x, "net.conv1", method=ARRAY), BadOption, "method=array"),
    (lambda n, x: explainers.describe(n, x, receptive_fields=ARRAY), BadOption, "receptive_fields=array"),
    named("activations", [[1.0]], ["cat"], explainers.WrongType),
    named("activations", torch.zeros(3)),
    named("finite", torch.full((3, 1), NAN)),
    named("3 images", torch.zeros(3, 1), ["cat"] * 2),
    named("labels", torch.zeros(3, 1), "cat"),
    named("held_out", torch.zeros(3, 1), held_out=[True]),
    named("held_out='half'", torch.zeros(3, 1), held_out="half"),
    named("least=85", torch.zeros(3, 1), least=85),
    named("least=None", torch.zeros(3, 1), least=None),
    named("top=0", torch.zeros(3, 1), top=0),
    *(visualized("", **{name: value}) for name, value in (  # type: ignore[arg-type]
        ("image", "pixels"), ("size", (4, 4)), ("images", 0), ("steps", 0), ("std", 0.0), ("mean", [0.1]),
        ("diversity", -1), ("seed", -1),
    )),
    visualized("", image="maco", natural_images=torch.zeros(2, 3, 9, 9)),
    visualized("", None, BadTarget),
    visualized("", explainers.Direction("net.conv1", torch.ones(99)), BadTarget),
]  # fmt: skip


def evaluated(error: str, maps: Any = MAPS, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    return lambda n, x: explainers.evaluate(n, x, maps, **changed), kind, re.escape(error)


def pointed(error: str, region: Any = None) -> Row:
    return evaluated(error, metrics="pointing_game", region=region)


def recommended(error: str, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    return lambda n, x: explainers.recommend(n, x, **changed), kind, error


def removed(error: str, change: Callable[[Any], Any] = lambda maps: maps, **changed: Any) -> Row:
    """Of maps as large as the images."""
    maps = change(torch.rand(3, 12, 16, generator=torch.Generator().manual_seed(0)))
    return lambda n, x: explainers.remove_brightest(n, x, maps, target=0, **changed), BadOption, error


BOXES = torch.tensor([[2.0, 2.0, 9.0, 8.0], [0.0, 0.0, 5.0, 5.0], [8.0, 4.0, 16.0, 12.0]])
METRICS: list[Row] = [
    evaluated("Unknown metric 'deletoin'. Did you mean 'deletion'", metrics="deletoin"),
    evaluated("Unknown metric Metric", metrics=[explainers.METRICS["deletion"]]),
    evaluated("steps=1", steps=1),
    evaluated("score='odds'", score="odds"),
    evaluated("score=array", score=ARRAY),
    evaluated("baseline='blurred'", baseline="blurred"),
    evaluated("Give True or False", controls=3),
    evaluated("budget='1'", budget="1"),
    evaluated("progress=3", progress=3),
    evaluated("not among metrics", options={"road": {}}),
    evaluated("deletion has no option 'levels'. It has no options.", options={"deletion": {"levels": 3}}),
    evaluated("Give {metric: {option: value}}", options=3),
    evaluated("Did you mean 'levels'", metrics="road", options={"road": {"level": 3}}),
    pointed("Give region=boxes"),
    pointed("Give boxes [3, 4]", torch.zeros(2, 4)),
    pointed("image 1 covers no pixel", BOXES * torch.tensor([[1], [0], [1]]) - 1),
    pointed("NaN", torch.full((3, 12, 16), NAN)),
    evaluated("runs the method again", metrics="sensitivity_max"),
    (lambda n, x: explainers.evaluate(n, x, explainers.explain("channel_effects", n, x)), BadOption, "one value per c"),
    # Arrays and lists
    evaluated("maps is a numpy array of shape (6, 8). Give maps [N, h, w]", ARRAY[0]),
    evaluated("for a single map m, give m[None]", MAPS[0]),
    evaluated("The maps have shape (2, 6, 8) for 3 images. Give one map per image: [3, h, w]", ARRAY[:2]),
    evaluated("maps is a numpy array of uint8. Give floats: maps.astype('float32')", (255 * ARRAY).astype("uint8")),
    evaluated("The maps are complex", ARRAY.astype(complex)),
    evaluated("The map of image 0 contains nan at row 0, column 0", np.where(ARRAY > -1, np.nan, ARRAY)),
    evaluated("maps is a masked array. Give values", np.ma.masked_array(ARRAY, ARRAY > 0.5)),
    evaluated("maps is a list with no elements. Give a list of arrays", []),
    evaluated("maps is a list with an element of type str", ["grad_cam"] * 3),
    evaluated("maps is a list of arrays of shapes (6, 8) and (3, 8)", [ARRAY[0], ARRAY[1, :3], ARRAY[2]]),
    evaluated("maps is a list with a sparse tensor", [MAPS[0].to_sparse()] * 3),
    evaluated("The function given as maps returned a result of shape (6, 8)", lambda images: ARRAY[0]),
    # Several maps, by name
    evaluated("maps={}", {}),
    evaluated("Give maps by name", {1: MAPS}),
    evaluated("maps['b']: The maps have shape (2, 4, 4) for 3 images", {"a": MAPS, "b": MAPS[:2]}),
    evaluated("maps['a']: Unknown method 'grad_cm'. Did you mean 'grad_cam'", {"a": "grad_cm"}),
    evaluated("maps['a']: maps is a dict", {"a": {"b": MAPS}}, explainers.ExplainerError),
    evaluated("sparseness cannot rank maps", {"a": MAPS}, metrics="sparseness"),
    evaluated("maps['a']: shift_stability runs the method again", {"a": MAPS}, metrics="shift_stability"),
    recommended("budget=0", budget=0),
    recommended(r"metrics=\[\]", metrics=[]),
    recommended("complexity has no better direction", metrics=["complexity"]),
    recommended("Unknown method 'grad_camm'.*grad_cam", methods=["grad_camm"]),
    recommended("methods=3", methods=3),
    recommended("Cannot use attention_rollout", methods=["attention_rollout"]),
    recommended("Cannot use feature_maps. It returns features", methods=["feature_maps"]),
    recommended("layers=3", layers=3),
    recommended("no layer 'layer9'", LayerNotFound, layers=["layer9"]),
    removed("The map of image 2 is constant", lambda m: torch.where(torch.arange(3).view(3, 1, 1) == 2, 3.0, m)),
    removed("The map of image 0 is constant", lambda m: torch.full_like(m, 0.1)[:, :3, :3]),
    removed("has no positive values", lambda m: m - 1.0),
    *(removed("Give finite maps", lambda m, v=v: torch.where(m > 0.9, v, m)) for v in (NAN, INF)),  # type: ignore[misc]
    removed("Give one map per image", lambda m: m[:2]),
    removed("Give floats", lambda m: m > 0.5),
    *(removed("share", share=share) for share in (0, 1, NAN, "0.2")),
    *(removed("samples", samples=samples) for samples in (0, 2.5)),
    removed("progress", progress=1),
]  # fmt: skip
ONE, GRAY, HEAT = torch.ones(1, 2, 2), Image.new("RGB", (12, 8)), torch.rand(3, 3)
SMOOTHED: list[Any] = [
    {}, {"sigma": 0.1, "augment": True}, {"sigma": -0.1}, {"sigma": 1.1}, {"sigma": True},
    {"sigma": 0.1, "samples": 0}, {"augment": False}, {"baselines": ()}, {"baselines": "blur"},
    {"baselines": ("zeros", "blur"), "samples": 5}, {"augment": "flip"}, {"augment": ARRAY},
]  # fmt: skip
# Maps that are sparse, complex or without cells
UNUSABLE = (ONE.to_sparse(), "sparse"), (ONE * 1j, "complex"), (ONE[:, :0], "without values")
TAKE_MAPS: list[Callable[[torch.Tensor], Any]] = [
    lambda maps: resize(maps, (4, 4)), lambda maps: explainers.fuse([maps], "product"),
    lambda maps: rank_correlation(maps, maps), lambda maps: explainers.regions(maps[0], (4, 4)),
    lambda maps: overlay(GRAY, maps[0]), lambda maps: explainers.overlay_frames([GRAY], maps),
]  # fmt: skip
DRAWN: list[Row] = [
    *((lambda n, x, m=m, take=take: take(m), BadOption, words) for m, words in UNUSABLE for take in TAKE_MAPS),  # type: ignore[misc]
    (lambda n, x: resize(ONE[0], (4, 4)), ValueError, r"m\[None\]"),
    (lambda n, x: resize(ONE, (0, 4)), ValueError, "at least 1"),
    (lambda n, x: resize(ONE, (4, 4), "bicubic"), ValueError, "bilinear, cubic, nearest, area"),
    (lambda n, x: resize(ONE, (4, 4), placement=Placement(((1.0,), (2.0,)), (4, 4))), ValueError, "placement is of"),
    (lambda n, x: resize(ONE, (4, 4), ARRAY), ValueError, "mode=array"),
    (lambda n, x: explainers.fuse([ONE], ARRAY), ValueError, "how=array"),
    (lambda n, x: explainers.fuse([ONE], placements=3), TypeError, "placements is an int"),
    (lambda n, x: rank_correlation(ONE, HEAT[None]), ValueError, "same shape"),
    (lambda n, x: explainers.regions(ONE[0], (2, 2), threshold=0), ValueError, "threshold=0"),
    (lambda n, x: explainers.regions(ONE, (2, 2)), ValueError, r"map\[i\]"),
    (lambda n, x: explainers.regions(ONE[0] * NAN, (2, 2)), ValueError, "finite"),
    (lambda n, x: overlay(GRAY, HEAT[None]), ValueError, r"map\[0\]"),
    (lambda n, x: overlay(GRAY, [[1.0]]), ValueError, "list"),  # type: ignore[arg-type]
    *((lambda n, x, v=v: overlay(GRAY, HEAT, opacity=v), ValueError, "0 to 1") for v in (1.5, NAN)),  # type: ignore[misc]
    (lambda n, x: overlay(GRAY, HEAT, colors="jet"), ValueError, "magma, viridis, signed"),
    (lambda n, x: overlay(GRAY, HEAT, limits=(0, INF)), ValueError, "finite"),
    (lambda n, x: overlay(Image.new("F", (4, 4)), HEAT), ValueError, "8 bits"),
    (lambda n, x: color_map("virdis"), ValueError, "'viridis'"),
    (lambda n, x: explainers.show(HEAT), TypeError, "Give the result of explain"),  # type: ignore[arg-type]
    (lambda n, x: explainers.show_channels(MAPS.expand(2, 3, 4, 4)), ValueError, r"\[K, h, w\]"),
    (lambda n, x: explainers.show_channels(MAPS, [3]), BadOption, "Unknown channel 3"),
    *((lambda n, x, given=given: smooth("integrated_gradients", **given), BadOption, "") for given in SMOOTHED),  # type: ignore[misc]
    (lambda n, x: smooth("saliency", baselines=("zeros", "blur")), BadOption, "baseline"),
    (lambda n, x: Augment(zoom=-1), BadOption, "zoom"),
]  # fmt: skip


def shown(error: str, kind: type[Exception] = BadOption, *images: Any, **changed: Any) -> Row:
    return lambda n, x: explainers.show(explainers.explain("saliency", n, x), *images, **changed), kind, error


SHOWN: list[Row] = [
    shown("1 images were given for 3 maps", ValueError, Image.new("RGB", (8, 8))),
    shown("most=0", most=0),
    shown("jet", colors="jet"),
    shown("array of shape", colors=ARRAY),
    *(shown("labels is ", TypeError, labels=labels) for labels in (10, "tabby", {"tabby"})),
    *(shown("signed=", signed=signed) for signed in (NAN, ARRAY)),
    shown("low below high", limits=(2, 1)),
]


def test_wrong_uses_are_refused() -> None:
    for row in (*EXPERIMENTS, *METRICS, *DRAWN, *SHOWN):
        net, images = Counting().eval(), random_images()
        with nothing_left(net, images):
            check(row, net, images)
