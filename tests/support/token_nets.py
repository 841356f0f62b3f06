"""Small vision transformers in the usual variants: fused qkv, registers, distillation tokens, pooled heads."""

from __future__ import annotations

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import swin_transformer as swin
from torchvision.models.convnext import CNBlockConfig

from tests.support.nets import settle


class Attention(nn.Module):
    """One Linear for q, k and v, split into heads; a fused kernel, or an explicit softmax."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.attn_drop = nn.Dropout(0.1)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, count, width = x.shape
        q, k, v = self.qkv(x).reshape(n, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = self.attn_drop((q * q.shape[-1] ** -0.5 @ k.mT).softmax(dim=-1)) @ v
        return self.proj(mixed.transpose(1, 2).reshape(n, count, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads, fused)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PlainViT(nn.Module):
    """`extra` tokens, patches, blocks; the head reads the "first" token, the first "two", or the "patches".

    With `is_last`, a single token comes after the patches.
    """

    def __init__(
        self,
        extra: int = 1,
        reads: str = "first",
        *,
        fused: bool = True,
        cut: str = "convolution",
        is_last: bool = False,
    ) -> None:
        super().__init__()
        self.is_last = is_last
        self.cut, self.extra, self.reads = cut, extra, reads
        self.patch = nn.Conv2d(3, 8, 16, 16) if cut == "convolution" else nn.Linear(3 * 16 * 16, 8)
        self.tokens = nn.Parameter(torch.zeros(1, extra, 8)) if extra else None
        self.blocks = nn.Sequential(*(Block(8, 2, fused) for _ in range(2)))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.cut == "convolution":
            patches = self.patch(x).flatten(2).mT
        else:
            squares = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5)
            patches = self.patch(squares.flatten(3).flatten(1, 2))
        before = [] if self.tokens is None else [self.tokens.expand(len(x), -1, -1)]
        x = self.norm(self.blocks(torch.cat([patches, *before] if self.is_last else [*before, patches], 1)))
        if self.is_last:
            read = x[:, -1:] if self.reads == "first" else x[:, :-1]
        else:
            read = {"first": x[:, :1], "two": x[:, :2], "patches": x[:, self.extra :]}[self.reads]
        return self.head(read.mean(1))


def plain_vit(extra: int = 1, reads: str = "first", **form: object) -> nn.Module:
    return settle(PlainViT(extra, reads, **form).double())  # type: ignore[arg-type]


def vit(layers: int = 3) -> nn.Module:
    """torchvision's own, for images of 64 px in patches of 16."""
    return settle(torchvision.models.VisionTransformer(64, 16, layers, 2, 16, 32, num_classes=7).double())


def swin_v1(width: int = 16) -> nn.Module:
    return settle(torchvision.models.SwinTransformer([4, 4], width, [2, 2], [2, 4], [4, 4], num_classes=7).double())


def swin_v2() -> nn.Module:
    form = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    net = torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=7, **form)
    return settle(net.double())


def max_vit() -> nn.Module:
    return settle(torchvision.models.MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=7).double())


def conv_next() -> nn.Module:
    stages = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 2)]
    return settle(torchvision.models.ConvNeXt(stages, layer_scale=1.0, num_classes=7).double())
