"""Networks for other tasks than classification: objects, masks, depth, sentences, embeddings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.networks.packages import TOKENS
from benchmarks.zoo.subject import SQUARE, Network

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
