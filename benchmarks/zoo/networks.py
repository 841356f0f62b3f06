"""Small members of many families of networks in packages, built offline with ten classes, and handwritten networks.

networks.json has the names of the networks and options that make them small. `@` marks networks that are built for one
image size with `img_size`, `!` networks with a fixed size, and `/` networks for segmentation.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo.subject import CLASSES, SMALL, SQUARE, WIDE, Network, Size
from tests.support.traces import Marker

LISTED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("ascii"))
TIMM_SQUARES = {"halonet26t": (256, 256), "bat_resnext26ts": (256, 256)}
VIT = {"image_size": 224, "patch_size": 16, "num_layers": 4, "num_heads": 3, "hidden_dim": 96, "mlp_dim": 192}
DETECTOR = {"weights": None, "weights_backbone": None, "num_classes": 4}
FEW_BOXES = {"min_size": 128, "max_size": 160, "rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 20}


def mean_of_a_class(output: Any) -> Tensor:
    """Return the mean logit of a class over the image, [N], for the output of a segmentation network."""
    scores = output["out"] if isinstance(output, dict) and "out" in output else getattr(output, "logits", output)
    return scores[:, 3].mean((1, 2))


def sum_of_boxes(output: Any) -> Tensor:
    """Return the sum of the detections' scores, [N]."""
    return torch.stack([found["scores"].sum() for found in output])


def packaged() -> Iterator[Network]:
    """Return the networks of timm, transformers, segmentation_models_pytorch and torchvision."""
    segments: dict[str, Any] = {"kind": "segmentation", "target": mean_of_a_class}
    for word, options in LISTED["timm"].items():
        name = word.rstrip("!@")
        sizes = (TIMM_SQUARES.get(name, SQUARE),) if word.endswith("!") else (WIDE, SMALL)
        seen = (240, 240) if name == "crossvit_tiny_240" else None  # it resizes every image to its own size
        given = {"model_name": name, "pretrained": False, "num_classes": CLASSES, **options}
        yield Network(f"timm {name}", _of("timm.create_model", word.endswith("@"), **given), sizes, seen=seen)
    for word, options in LISTED["transformers"].items():
        name, sizes = word.rstrip("!/"), (SQUARE,) if word.endswith("!") else (WIDE, SMALL)
        title = f"{name}For{'SemanticSegmentation' if word.endswith('/') else 'ImageClassification'}"
        make = _transformers(title, f"{name}Config", num_labels=CLASSES, attn_implementation="eager", **options)
        yield Network(f"transformers {title}", make, sizes, **(segments if word.endswith("/") else {}))
    for name, encoder in LISTED["segmentation_models_pytorch"].items():
        options = {"encoder_name": encoder, "encoder_weights": None, "classes": CLASSES}
        yield Network(f"smp {name} {encoder}", _of(f"segmentation_models_pytorch.{name}", **options), **segments)
    for word in LISTED["torchvision"]:
        name, sizes = word.rstrip("!"), (SQUARE,) if word.endswith("!") else (WIDE, SMALL)
        options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        make = _of(f"torchvision.models.{name}", weights=None, num_classes=CLASSES, **options)
        yield Network(f"torchvision {name}", make, sizes)
    make = _of("torchvision.models.vision_transformer.VisionTransformer", **VIT, num_classes=CLASSES)
    yield Network("torchvision VisionTransformer", make, (SQUARE,))
    for name in ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"):
        make = _of(f"torchvision.models.segmentation.{name}", **DETECTOR | {"num_classes": CLASSES})
        yield Network(f"torchvision {name}", make, **segments)
    # The selection of boxes may depend on rounding.
    found: dict[str, Any] = {"kind": "detector", "target": sum_of_boxes, "rounding": 5e-3}
    small = {"sizes": ((160, 128), (128, 128))}
    name, few = "fasterrcnn_mobilenet_v3_large_320_fpn", {"box_detections_per_img": 10, "box_score_thresh": 0.0}
    make = _of(f"torchvision.models.detection.{name}", **DETECTOR, **FEW_BOXES, **few)
    yield Network(f"torchvision {name}", make, **small, **found)
    name, few = "ssdlite320_mobilenet_v3_large", {"detections_per_img": 10, "score_thresh": 0.0}
    make = _of(f"torchvision.models.detection.{name}", **DETECTOR, **few)
    yield Network(f"torchvision {name}", make, seen=(320, 320), **found)
    yield Network("torchvision retinanet_resnet18_fpn", _retinanet, finish=_unsaturated, **small, **found)


def _of(path: str, sized: bool = False, **options: Any) -> Any:
    """Return a function that builds a network by the path of its class or function; `sized` if for one image size."""

    def make(size: Size) -> nn.Module:
        folder, _, name = path.rpartition(".")
        given = options | ({"img_size": size} if sized else {})
        return getattr(importlib.import_module(folder), name)(**given)

    return make


def _transformers(name: str, config: str, **options: Any) -> Any:
    """Return a function that builds a network of transformers from the name and options of its configuration."""

    def configured(config: str, **options: Any) -> Any:
        own = {key: configured(**each) for key, each in options.items() if isinstance(each, dict) and "config" in each}
        return _of(f"transformers.{config}", **options | own)(SQUARE)

    return lambda size: _of(f"transformers.{name}", config=configured(config, **options))(size)


def _unsaturated(network: nn.Module) -> nn.Module:
    """Scale the detection scores well below 1, so that rounding does not hide their slope."""
    with torch.no_grad():
        network.get_submodule("head.classification_head.cls_logits").weight.mul_(0.05)
    return network


def _retinanet(size: Size) -> nn.Module:
    """Use only the backbone's last stage: the heads run on every level and take most of the time."""
    detection = importlib.import_module("torchvision.models.detection")
    anchors = detection.anchor_utils.AnchorGenerator(((64,), (128,)), ((0.5, 1.0, 2.0),) * 2)
    make = detection.backbone_utils.resnet_fpn_backbone
    backbone = make(backbone_name="resnet18", weights=None, trainable_layers=5, returned_layers=[4])
    few = {"min_size": 128, "max_size": 160, "detections_per_img": 10, "score_thresh": 0.0}
    return detection.RetinaNet(backbone, 4, anchor_generator=anchors, **few)


# Networks for other tasks than classification


def _with_a_sentence(network: nn.Module) -> Callable[[Tensor], Any]:
    tokens = torch.tensor([[5, 7, 11, 13, 17, 2, 1, 1]])
    return lambda images: network(input_ids=tokens, pixel_values=images)


def _masks(output: Any) -> Tensor:
    """Return the mean of the class map of class 3, as MaskFormer computes it, [N]."""
    classes, masks = output.class_queries_logits.softmax(-1), output.masks_queries_logits.sigmoid()
    return torch.einsum("nq,nqhw->n", classes[..., 3], masks) / masks[0, 0].numel()


def tasks() -> Iterator[Network]:
    """Return the networks for other tasks."""

    def network(name: str, target: Any, *without: str, **options: Any) -> Network:
        checks = tuple(check for check in PLACED if check not in without)
        make = _transformers(name, **LISTED["tasks"][name])
        return Network(f"transformers {name}", make, target=target, checks=checks, **options)

    detector: dict[str, Any] = {"kind": "detector", "rounding": 5e-3}
    sentence: dict[str, Any] = {"forward": _with_a_sentence, "sizes": (SQUARE,)}
    yield network("DetrForObjectDetection", lambda output: output.logits.softmax(-1)[..., 3].sum(1), **detector)
    # They select queries by their scores, so differences of scores do not approximate the gradient.
    objects = lambda output: output.logits.sigmoid()[..., 3].sum(1)  # noqa: E731
    yield network("RTDetrV2ForObjectDetection", objects, "integrated_gradients", **detector)
    yield network("DFineForObjectDetection", objects, "integrated_gradients", **detector)
    yield network("MaskFormerForInstanceSegmentation", _masks, kind="segmentation")
    # All patches affect each other before the head, so changes show no positions.
    depth = lambda output: output.predicted_depth.mean((1, 2))  # noqa: E731
    yield network("DepthAnythingForDepthEstimation", depth, "positions", sizes=((224, 168), (168, 168)))
    # The text's embedding consists of additive constants, so LRP's oracle, a copy without them, has no score.
    pairs = lambda output: output.logits_per_image[:, 0]  # noqa: E731
    yield network("CLIPModel", pairs, "lrp", **sentence)
    yield network("SiglipModel", pairs, "lrp", **sentence)
    yield network("Dinov2Model", lambda output: output.last_hidden_state[:, 0, 3])


# Handwritten networks: several inputs, checkpoints, repeated blocks, permutations, and changes of the geometry

Change = Callable[[Tensor], Tensor]


def block(inputs: int, outputs: int, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


class Small(nn.Module):
    """Four blocks, a pool and a linear layer; `change` is applied to the images first."""

    def __init__(self, change: Change = lambda x: x) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.three = block(3, 16, 4), block(16, 24), block(24, 32), block(32, 48, 1)
        self.head = nn.Linear(48, CLASSES)
        self.change = change

    def features(self, images: Tensor) -> Tensor:
        return self.three(self.two(self.one(self.stem(self.change(images)))))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


class TwoInputs(Small):
    """An image and a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.about = nn.Linear(4, 48)

    def forward(self, images: Tensor, numbers: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)) * (1 + self.about(numbers).tanh()))


class DictInput(Small):
    """A dict of tensors, as from a data loader."""

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": super().forward(batch["pixel_values"] * batch["mask"])}


class Checkpointed(Small):
    """Blocks that are recomputed in the backward pass, or stored if `use_reentrant` is None."""

    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def features(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for step in (self.one, self.two, self.three):
            x = step(x) if self.use_reentrant is None else checkpoint(step, x, use_reentrant=self.use_reentrant)
        return x


class OwnFunction(Small):
    """Two functions with a custom backward pass."""

    def features(self, images: Tensor) -> Tensor:
        return Marker()(self.three(Marker()(self.two(self.one(self.stem(images))))))


class Repeated(Small):
    """One block that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = block(32, 32, 1)

    def features(self, images: Tensor) -> Tensor:
        return self.three(self.again(self.again(self.two(self.one(self.stem(images))))))


class Reshaped(nn.Module):
    """Manual channels last: a linear layer over the channels, permuted back, followed by an addition without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = block(3, 24, 4), block(24, 40)
        self.mix, self.last = nn.Linear(24, 24), nn.Linear(40, 40)
        self.end = nn.Identity()
        self.head = nn.Linear(40, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = self.down(x + self.mix(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        x = self.end(x + self.last(x.permute(0, 2, 3, 1)).relu().permute(0, 3, 1, 2))
        return self.head(x.mean((2, 3)))


def quantized(network: nn.Module) -> nn.Module:
    """Linear layers in 8 bits with dynamic quantization."""
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, torch.qint8)


def _with_numbers(network: nn.Module) -> Callable[[Tensor], Any]:
    numbers = torch.tensor([[0.5, -1.0, 2.0, 0.25]])
    return lambda images: network(images, numbers.to(images).expand(len(images), -1))


def _with_a_dict(network: nn.Module) -> Callable[[Tensor], Any]:
    return lambda images: network({"pixel_values": images, "mask": torch.ones_like(images[:, :1])})["logits"]


def own() -> Iterator[Network]:
    """Return the custom networks."""
    yield Network("own two inputs", lambda size: TwoInputs(), forward=_with_numbers)
    yield Network("own dict input", lambda size: DictInput(), forward=_with_a_dict)
    yield Network("own checkpoint, reentrant", lambda size: Checkpointed(True))
    yield Network("own checkpoint", lambda size: Checkpointed(False))
    # The rounding of activations depends on the range of the whole batch.
    yield Network("own quantized linear layers", lambda size: Reshaped(), finish=quantized, rounding=0.05)
    yield Network("own autograd.Function", lambda size: OwnFunction())
    yield Network("own repeated block", lambda size: Repeated())
    yield Network("own channels last in a block", lambda size: Reshaped())


PLACED = ("positions", "steady", "integrated_gradients", "deep_lift", "lrp", "rise")
"""The checks whose oracles do not judge the default layer, nor compute a map at its own cells."""


def _crop(x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    return x[..., height // 4 : height // 4 + height // 2, : 3 * width // 4]


def _letterbox(x: Tensor) -> Tensor:
    """Resize to 75% of the height and half of the width, with a border at the left and below."""
    height, width = x.shape[-2:]
    small = F.interpolate(x, (3 * height // 4, width // 2), mode="bilinear")
    return F.pad(small, (width // 2, 0, 0, height // 4))


def _to_multiple(x: Tensor) -> Tensor:
    """Copy the image into zeros whose sides are multiples of 96, as a detector does with 32."""
    canvas = x.new_zeros(*x.shape[:2], *(-(-side // 96) * 96 for side in x.shape[-2:]))
    canvas[:, :, : x.shape[2], : x.shape[3]] = x
    return canvas


def _zoom(x: Tensor) -> Tensor:
    theta = torch.tensor([[0.7, 0.0, 0.2], [0.0, 0.6, -0.1]]).to(x).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


GEOMETRY: dict[str, Change] = {
    "crop": _crop,
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll((x.shape[2] // 3, x.shape[3] // 4), (2, 3)),
    "padding": lambda x: F.pad(x, (x.shape[3] // 5, x.shape[3] // 5, x.shape[2] // 5, x.shape[2] // 5)),
    "letterbox": _letterbox,
    "padding to a multiple": _to_multiple,
    "zoom": _zoom,
    "sorted rows": lambda x: x.sort(2).values,
}


def unusual() -> Iterator[Network]:
    """Return the networks that change the geometry of their images."""
    for name, change in GEOMETRY.items():
        yield Network(f"unusual {name}", lambda size, change=change: Small(change), checks=PLACED)  # type: ignore[misc]


def networks() -> Iterator[Network]:
    """Return all networks in the order of the table."""
    for group in (packaged, tasks, own, unusual):
        yield from group()
