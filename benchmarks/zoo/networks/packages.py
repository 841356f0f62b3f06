"""Small members of many families of networks in packages, built offline with ten classes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.subject import CLASSES, SMALL, SQUARE, WIDE, Network, Size

TIMM = """
resnet18 resnext26ts seresnext26ts skresnet18 resnest14d efficientnetv2_rw_t mobilenetv3_small_050
mobilenetv4_conv_small_035 mobilenetv4_hybrid_medium ghostnetv2_100 repghostnet_050 mnasnet_small regnetz_005 repvgg_a0
repvit_m0_9 dla46_c ese_vovnet19b_slim_dw cs3darknet_focus_s nf_regnet_b0 hrnet_w18_small inception_next_atto
lcnet_050 tinynet_e rexnet_100 gernet_s hgnetv2_b0 mobileone_s0 fasternet_t0 starnet_s050 botnet26t_256@ halonet26t!
lambda_resnet26t bat_resnext26ts! gcresnext26ts convnext_atto convnextv2_atto edgenext_xx_small mambaout_femto
rdnet_tiny poolformer_s12 poolformerv2_s12 convformer_s18 caformer_s18 tiny_vit_5m_224 nest_tiny!
coat_tiny@ coat_lite_tiny@ maxvit_rmlp_pico_rw_256@ coatnet_pico_rw_224@ gcvit_xxtiny@ davit_tiny csatv2 sequencer2d_s
hieradet_small hiera_tiny_224@ levit_128s@ levit_conv_128s@ xcit_nano_12_p16_224 cait_xxs24_224@ deit_tiny_patch16_224@
deit3_small_patch16_224@ vit_tiny_patch16_224@ vit_tiny_r_s16_p8_224@ vit_relpos_small_patch16_224@
vit_wee_patch16_reg1_gap_256@ beit_base_patch16_224@ eva02_tiny_patch14_224@ flexivit_small@ naflexvit_base_patch16_gap
visformer_tiny@ pvt_v2_b0 twins_svt_small swin_tiny_patch4_window7_224@ swin_s3_tiny_224@
swinv2_tiny_window8_256@ swinv2_cr_tiny_224@ crossvit_tiny_240 convit_tiny! mixer_s32_224@ gmlp_ti16_224@ resmlp_12_224@
efficientformer_l1! efficientformerv2_s0@ efficientvit_b0 efficientvit_m0 fastvit_t8 mobilevit_xxs mobilevitv2_050
mvitv2_tiny nextvit_small pit_ti_224@ pit_ti_distilled_224@ shvit_s1 swiftformer_xs tnt_s_patch16_224@
volo_d1_224@ focalnet_tiny_srf vitamin_small_224@
"""
"""`@` marks networks that are built for one image size with `img_size`, and `!` networks with a fixed size."""
TIMM_SQUARES = {"halonet26t": (256, 256), "bat_resnext26ts": (256, 256)}
SHORT = {"depth": 6}
THIN = {"depths": (2, 2, 2, 2), "embed_dim": 48}
TIMM_SMALLER: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"embed_dim": 192, "depth": 6, "num_heads": 6},
    "cait_xxs24_224": {"depth": 8},
    "flexivit_small": {"depth": 6, "embed_dim": 192, "num_heads": 3},
    "naflexvit_base_patch16_gap": {"depth": 4, "embed_dim": 192, "num_heads": 3},
    **dict.fromkeys(("deit3_small_patch16_224", "eva02_tiny_patch14_224", "vit_relpos_small_patch16_224"), SHORT),
    **dict.fromkeys(("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224"), THIN),
}
TOKENS: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 192}
SWIN: dict[str, Any] = {"depths": [2, 2, 2, 2], "embed_dim": 48, "num_heads": [3, 3, 6, 6]}
CONVNEXT: dict[str, Any] = {"depths": [2, 2, 3, 2], "hidden_sizes": [24, 48, 96, 192]}
STAGES: dict[str, Any] = {"hidden_sizes": [32, 64, 96, 128]}
LEVIT: dict[str, Any] = {"hidden_sizes": [64, 96, 128], "num_attention_heads": [2, 3, 4], "key_dim": [16, 16, 16]}
BIT: dict[str, Any] = {"embedding_size": 32, "num_groups": 8, "hidden_sizes": [64, 128, 256, 512]}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ViT!": TOKENS,
    "DeiT!": TOKENS,
    "Beit!": TOKENS,
    "Dinov2": TOKENS,
    "Dinov2WithRegisters": TOKENS,
    "ViTMSN!": TOKENS,
    "Siglip!": {"vision_config": TOKENS},
    "CLIP!": {"vision_config": TOKENS},
    "Swin!": SWIN | {"window_size": 7},
    "Swinv2": SWIN,
    "ConvNext": CONVNEXT,
    "ConvNextV2": CONVNEXT,
    "ResNet": STAGES | {"depths": [2, 2, 2, 2]},
    "RegNet": STAGES | {"depths": [1, 2, 3, 2], "groups_width": 32},
    "MobileNetV2": {},
    "MobileViT": {},
    "MobileViTV2": {"width_multiplier": 0.5},
    "Pvt!": {},
    "PvtV2": {},
    "Segformer": {},
    "Segformer/": {},
    "Levit!": LEVIT,
    "Hiera!": {"embed_dim": 48, "depths": [1, 2, 4, 1]},
    "Cvt": {"depth": [1, 2, 4]},
    "FocalNet": {"embed_dim": 48},
    "PoolFormer": {},
    "SwiftFormer": {},
    "Bit": BIT | {"depths": [2, 2, 2, 2]},
}
"""`!` marks networks with a fixed size, and `/` networks for segmentation."""
SEGMENTATION = {
    "Unet": "resnet18",
    "UnetPlusPlus": "timm-mobilenetv3_small_075",
    "FPN": "resnet18",
    "PSPNet": "resnet18",
    "DeepLabV3Plus": "mobilenet_v2",
    "Linknet": "resnet18",
    "PAN": "resnet18",
    "UPerNet": "resnet18",
    "Segformer": "mit_b0",
}
"""Networks of segmentation_models_pytorch, and their encoders."""
TORCHVISION = """
alexnet vgg11_bn squeezenet1_1 densenet121 googlenet mobilenet_v2 mobilenet_v3_small shufflenet_v2_x0_5 efficientnet_b0
regnet_y_400mf mnasnet0_5 convnext_tiny swin_t swin_v2_t maxvit_t!
"""
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
    for word in TIMM.split():
        name = word.rstrip("!@")
        sizes = (TIMM_SQUARES.get(name, SQUARE),) if word.endswith("!") else (WIDE, SMALL)
        seen = (240, 240) if name == "crossvit_tiny_240" else None  # it resizes every image to its own size
        yield Network(f"timm {name}", _timm(name, word.endswith("@")), sizes, seen=seen)
    for word, options in TRANSFORMERS.items():
        name, sizes = word.rstrip("!/"), (SQUARE,) if word.endswith("!") else (WIDE, SMALL)
        title = f"{name}For{'SemanticSegmentation' if word.endswith('/') else 'ImageClassification'}"
        make = _transformers(title, f"{name}Config", options)
        yield Network(f"transformers {title}", make, sizes, **(segments if word.endswith("/") else {}))
    for name, encoder in SEGMENTATION.items():
        options = {"encoder_name": encoder, "encoder_weights": None, "classes": CLASSES}
        yield Network(f"smp {name} {encoder}", _of(f"segmentation_models_pytorch.{name}", **options), **segments)
    for word in TORCHVISION.split():
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


def _timm(name: str, sized: bool) -> Any:
    def make(size: Size) -> nn.Module:
        options = {**TIMM_SMALLER.get(name, {}), **({"img_size": size} if sized else {})}
        timm = importlib.import_module("timm")
        return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)

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
