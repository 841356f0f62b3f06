"""Small members of many families of networks in packages, built offline with ten classes, and all networks.

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

from benchmarks.zoo.handwritten import own, unusual
from benchmarks.zoo.subject import CLASSES, SMALL, SQUARE, WIDE, Network, Size

LISTED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("ascii"))
TIMM_SQUARES = {"halonet26t": (256, 256), "bat_resnext26ts": (256, 256)}
TOKENS: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 192}
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
        yield Network(f"timm {name}", _timm(name, word.endswith("@"), options), sizes, seen=seen)
    for word, options in LISTED["transformers"].items():
        name, sizes = word.rstrip("!/"), (SQUARE,) if word.endswith("!") else (WIDE, SMALL)
        title = f"{name}For{'SemanticSegmentation' if word.endswith('/') else 'ImageClassification'}"
        make = _transformers(title, f"{name}Config", options)
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
    yield Network(
        f"torchvision {name}", _of(f"torchvision.models.detection.{name}", **DETECTOR, **few), seen=(320, 320), **found
    )
    yield Network("torchvision retinanet_resnet18_fpn", _retinanet, finish=_unsaturated, **small, **found)


def _of(path: str, **options: Any) -> Any:
    """Return a function that builds a network by the path of its class or function."""

    def make(size: Size) -> nn.Module:
        folder, _, name = path.rpartition(".")
        return getattr(importlib.import_module(folder), name)(**options)

    return make


def _timm(name: str, sized: bool, options: dict[str, Any]) -> Any:
    def make(size: Size) -> nn.Module:
        given = options | ({"img_size": size} if sized else {})
        timm = importlib.import_module("timm")
        return timm.create_model(name, pretrained=False, num_classes=CLASSES, **given)

    return make


def _transformers(name: str, config: str, options: dict[str, Any]) -> Any:
    options = {"num_labels": CLASSES, "attn_implementation": "eager", **options}
    return lambda size: _of(f"transformers.{name}", config=_of(f"transformers.{config}", **options)(size))(size)


def _unsaturated(network: nn.Module) -> nn.Module:
    """Scale the detection scores well below 1, so that rounding does not hide their slope."""
    with torch.no_grad():
        network.get_submodule("head.classification_head.cls_logits").weight.mul_(0.05)
    return network


def _retinanet(size: Size) -> nn.Module:
    """Use only the backbone's last stage: the heads run on every level and take most of the time."""
    detection = importlib.import_module("torchvision.models.detection")
    anchors = detection.anchor_utils.AnchorGenerator(((64,), (128,)), ((0.5, 1.0, 2.0),) * 2)
    backbone = detection.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, trainable_layers=5, returned_layers=[4]
    )
    few = {"min_size": 128, "max_size": 160, "detections_per_img": 10, "score_thresh": 0.0}
    return detection.RetinaNet(backbone, 4, anchor_generator=anchors, **few)


# Networks for other tasks than classification

WIDTHS: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
PIXELS = ("positions", "steady", "integrated_gradients", "deep_lift", "lrp", "rise")
"""The checks that do not judge which layer is the default one."""
STAGES = ["stage1", "stage2", "stage3", "stage4"]
TEXT = {**TOKENS, "vocab_size": 100, "max_position_embeddings": 8}
QUERIES = {"num_queries": 8, "decoder_layers": 2, "decoder_attention_heads": 2, "d_model": 32, "decoder_ffn_dim": 64}
ENCODER = {"encoder_attention_heads": 2, "encoder_ffn_dim": 64}


def _detr(t: Any) -> nn.Module:
    backbone = t.ResNetConfig(**WIDTHS, layer_type="basic", out_features=["stage4"])
    own = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False, "num_labels": 4}
    own |= {"encoder_layers": 2, **QUERIES, **ENCODER}
    return t.DetrForObjectDetection(t.DetrConfig(backbone_config=backbone, **own))


def _real_time(t: Any, kind: str, backbone: Any) -> nn.Module:
    widths = {"encoder_hidden_dim": 32, "encoder_in_channels": [24, 32, 48], "decoder_in_channels": [32] * 3}
    own = {"num_labels": 4, "num_denoising": 0, **QUERIES, **ENCODER, **widths}
    return getattr(t, f"{kind}ForObjectDetection")(getattr(t, f"{kind}Config")(backbone_config=backbone, **own))


def _rt_detr(t: Any) -> nn.Module:
    return _real_time(t, "RTDetrV2", t.RTDetrResNetConfig(**WIDTHS, layer_type="basic", out_features=STAGES[1:]))


def _d_fine(t: Any) -> nn.Module:
    blocks: dict[str, Any] = {"stage_in_channels": [16, 16, 24, 32], "stage_mid_channels": [8] * 4}
    blocks |= {"stem_channels": [3, 8, 16], "stage_out_channels": [16, 24, 32, 48]}
    blocks |= {"stage_num_blocks": [1] * 4, "stage_numb_of_layers": [1] * 4}
    return _real_time(t, "DFine", t.HGNetV2Config(**WIDTHS, **blocks, out_features=STAGES[1:]))


def _mask_former(t: Any) -> nn.Module:
    small = {"embed_dim": 24, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 7}
    parts = {"backbone_config": t.SwinConfig(**small, out_features=STAGES), "decoder_config": t.DetrConfig(**QUERIES)}
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 4}
    return t.MaskFormerForInstanceSegmentation(t.MaskFormerConfig(**parts, **sizes))


def _depth(t: Any) -> nn.Module:
    backbone = t.Dinov2Config(**TOKENS, out_indices=[1, 2, 3, 4], reshape_hidden_states=False)
    sizes = {"neck_hidden_sizes": [16, 24, 32, 32], "fusion_hidden_size": 16, "head_hidden_size": 16}
    sizes |= {"reassemble_hidden_size": 96, "patch_size": 14}
    return t.DepthAnythingForDepthEstimation(t.DepthAnythingConfig(backbone_config=backbone, **sizes))


def _clip(t: Any) -> nn.Module:
    return t.CLIPModel(t.CLIPConfig(text_config=TEXT, vision_config=TOKENS, projection_dim=32))


def _siglip(t: Any) -> nn.Module:
    return t.SiglipModel(t.SiglipConfig(text_config=TEXT, vision_config=TOKENS))


def _with_a_sentence(network: nn.Module) -> Callable[[Tensor], Any]:
    tokens = torch.tensor([[5, 7, 11, 13, 17, 2, 1, 1]])
    return lambda images: network(input_ids=tokens, pixel_values=images)


def _masks(output: Any) -> Tensor:
    """Return the mean of the class map of class 3, as MaskFormer computes it, [N]."""
    classes, masks = output.class_queries_logits.softmax(-1), output.masks_queries_logits.sigmoid()
    return torch.einsum("nq,nqhw->n", classes[..., 3], masks) / masks[0, 0].numel()


def tasks() -> Iterator[Network]:
    """Return the networks for other tasks."""

    def network(name: str, build: Callable[[Any], nn.Module], target: Any, *without: str, **options: Any) -> Network:
        checks = tuple(check for check in PIXELS if check not in without)
        make = lambda size: build(importlib.import_module("transformers"))  # noqa: E731
        return Network(f"transformers {name}", make, target=target, checks=checks, **options)

    detector: dict[str, Any] = {"kind": "detector", "rounding": 5e-3}
    sentence: dict[str, Any] = {"forward": _with_a_sentence, "sizes": (SQUARE,)}
    candidates = lambda output: output.logits.softmax(-1)[..., 3].sum(1)  # noqa: E731
    yield network("DetrForObjectDetection", _detr, candidates, **detector)
    # They select queries by their scores, so differences of scores do not approximate the gradient.
    objects = lambda output: output.logits.sigmoid()[..., 3].sum(1)  # noqa: E731
    yield network("RTDetrV2ForObjectDetection", _rt_detr, objects, "integrated_gradients", **detector)
    yield network("DFineForObjectDetection", _d_fine, objects, "integrated_gradients", **detector)
    yield network("MaskFormerForInstanceSegmentation", _mask_former, _masks, kind="segmentation")
    # All patches affect each other before the head, so changes show no positions.
    depth = lambda output: output.predicted_depth.mean((1, 2))  # noqa: E731
    yield network("DepthAnythingForDepthEstimation", _depth, depth, "positions", sizes=((224, 168), (168, 168)))
    # The text's embedding consists of additive constants, so LRP's oracle, a copy without them, has no score.
    pairs = lambda output: output.logits_per_image[:, 0]  # noqa: E731
    yield network("CLIPModel", _clip, pairs, "lrp", **sentence)
    yield network("SiglipModel", _siglip, pairs, "lrp", **sentence)
    backbone = lambda t: t.Dinov2Model(t.Dinov2Config(**TOKENS))  # noqa: E731
    yield network("Dinov2Model", backbone, lambda output: output.last_hidden_state[:, 0, 3])


def networks() -> Iterator[Network]:
    """Return all networks in the order of the table."""
    for group in (packaged, tasks, own, unusual):
        yield from group()
