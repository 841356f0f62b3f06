"""Networks for other tasks than classification: objects, masks, depth, sentences, embeddings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.subject import SMALL, SQUARE, WIDE, Network, Size

TOKENS: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 192,
}  # fmt: skip
WIDTHS: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
PIXELS = ("positions", "steady", "integrated_gradients", "deep_lift", "lrp", "rise")
"""The checks that do not judge which layer is the default one."""

Build = Callable[[Any], nn.Module]


def _network(name: str, build: Build, target: Callable[[Any], Tensor], **options: Any) -> Network:
    def make(size: Size) -> nn.Module:
        return build(importlib.import_module("transformers"))

    return Network(f"transformers {name}", make, target=target, **{"checks": PIXELS, **options})


def _detr(t: Any) -> nn.Module:
    backbone = t.ResNetConfig(**WIDTHS, layer_type="basic", out_features=["stage4"])
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 32, "num_queries": 8}
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    own = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False, "num_labels": 4}
    return t.DetrForObjectDetection(t.DetrConfig(backbone_config=backbone, **heads, **layers, **own))


def _real_time(t: Any, kind: str, backbone: Any) -> nn.Module:
    widths = {"encoder_hidden_dim": 32, "encoder_in_channels": [24, 32, 48], "decoder_in_channels": [32] * 3}
    layers = {"encoder_ffn_dim": 64, "encoder_attention_heads": 2, "d_model": 32, "decoder_ffn_dim": 64}
    own = {"num_queries": 8, "decoder_layers": 2, "decoder_attention_heads": 2, "num_labels": 4, "num_denoising": 0}
    config = getattr(t, f"{kind}Config")(backbone_config=backbone, **widths, **layers, **own)
    return getattr(t, f"{kind}ForObjectDetection")(config)


STAGES = ["stage2", "stage3", "stage4"]


def _rt_detr(t: Any) -> nn.Module:
    return _real_time(t, "RTDetrV2", t.RTDetrResNetConfig(**WIDTHS, layer_type="basic", out_features=STAGES))


def _d_fine(t: Any) -> nn.Module:
    blocks: dict[str, Any] = {"stage_in_channels": [16, 16, 24, 32], "stage_mid_channels": [8] * 4}
    blocks |= {"stem_channels": [3, 8, 16], "stage_out_channels": [16, 24, 32, 48]}
    blocks |= {"stage_num_blocks": [1] * 4, "stage_numb_of_layers": [1] * 4}
    return _real_time(t, "DFine", t.HGNetV2Config(**WIDTHS, **blocks, out_features=STAGES))


def _mask_former(t: Any) -> nn.Module:
    backbone = t.SwinConfig(embed_dim=24, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 2], window_size=7,
                            out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
    decoder = t.DetrConfig(d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64, num_queries=8)
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 4}
    config = t.MaskFormerConfig(backbone_config=backbone, decoder_config=decoder, **sizes)
    return t.MaskFormerForInstanceSegmentation(config)


def _depth(t: Any) -> nn.Module:
    backbone = t.Dinov2Config(**TOKENS, out_indices=[1, 2, 3, 4], reshape_hidden_states=False)
    sizes = {"neck_hidden_sizes": [16, 24, 32, 32], "fusion_hidden_size": 16, "head_hidden_size": 16}
    config = t.DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=96, patch_size=14, **sizes)
    return t.DepthAnythingForDepthEstimation(config)


def _clip(t: Any) -> nn.Module:
    text = {**TOKENS, "vocab_size": 100, "max_position_embeddings": 8}
    return t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=TOKENS, projection_dim=32))


def _siglip(t: Any) -> nn.Module:
    text = {**TOKENS, "vocab_size": 100, "max_position_embeddings": 8}
    return t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=TOKENS))


def _backbone(t: Any) -> nn.Module:
    return t.Dinov2Model(t.Dinov2Config(**TOKENS))


def _with_a_sentence(network: nn.Module) -> Callable[[Tensor], Any]:
    tokens = torch.tensor([[5, 7, 11, 13, 17, 2, 1, 1]])
    return lambda images: network(input_ids=tokens, pixel_values=images)


def _objects(activation: str) -> Callable[[Any], Tensor]:
    """Return a target: the summed scores of class 3 over all candidates, [N]."""

    def target(output: Any) -> Tensor:
        scores = output.logits.softmax(-1) if activation == "softmax" else output.logits.sigmoid()
        return scores[..., 3].sum(1)

    return target


def _masks(output: Any) -> Tensor:
    """Return the mean of the class map of class 3, as MaskFormer computes it, [N]."""
    classes, masks = output.class_queries_logits.softmax(-1), output.masks_queries_logits.sigmoid()
    return torch.einsum("nq,nqhw->n", classes[..., 3], masks) / masks[0, 0].numel()


def tasks() -> Iterator[Network]:
    """Return the networks for other tasks."""
    detector: dict[str, Any] = {"kind": "detector", "rounding": 5e-3}
    yield _network("DetrForObjectDetection", _detr, _objects("softmax"), **detector)
    # They select queries by their scores, so differences of scores do not approximate the gradient.
    detector["checks"] = tuple(name for name in PIXELS if name != "integrated_gradients")
    yield _network("RTDetrV2ForObjectDetection", _rt_detr, _objects("sigmoid"), **detector)
    yield _network("DFineForObjectDetection", _d_fine, _objects("sigmoid"), **detector)
    yield _network("MaskFormerForInstanceSegmentation", _mask_former, _masks, kind="segmentation")
    # All patches affect each other before the head, so changes show no positions.
    depth: dict[str, Any] = {"checks": PIXELS[1:], "sizes": ((224, 168), (168, 168))}
    yield _network(
        "DepthAnythingForDepthEstimation", _depth, lambda output: output.predicted_depth.mean((1, 2)), **depth
    )
    # The text's embedding consists of additive constants, so LRP's oracle, a copy without them, has no score.
    sentence: dict[str, Any] = {"forward": _with_a_sentence, "sizes": (SQUARE,)}
    sentence["checks"] = tuple(name for name in PIXELS if name != "lrp")
    yield _network("CLIPModel", _clip, lambda output: output.logits_per_image[:, 0], **sentence)
    yield _network("SiglipModel", _siglip, lambda output: output.logits_per_image[:, 0], **sentence)
    yield _network("Dinov2Model", _backbone, lambda output: output.last_hidden_state[:, 0, 3], sizes=(WIDE, SMALL))
