"""A small network with an image and a text encoder, and a tokenizer of words; both also as Hugging Face folders."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor, nn

LENGTH = 8
"""Tokens that the text encoder reads."""
WORDS = "a photo of dog cat the in grass blue sky red car two dogs and running".split()
STEPS = 4
"""Steps of the curves of the app: every new map is checked automatically, and 20 steps take most of its time."""


def tokenize(sentences: list[str]) -> Tensor:
    """Return ids [M, LENGTH] of words, 0 after the end; longer sentences are cut, as by open_clip."""
    rows = [[zlib.crc32(word.encode()) % 63 + 1 for word in sentence.lower().split()] for sentence in sentences]
    return torch.tensor([(row + [0] * LENGTH)[:LENGTH] for row in rows])


class TwoEncoders(nn.Module):
    """Two encoders with the names of open_clip."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.visual = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 16, 2, 2), nn.ReLU())
        self.head, self.words = nn.Linear(16, 12), nn.Embedding(64, 12)

    def encode_image(self, images: Tensor) -> Tensor:
        return self.head(self.visual(images).mean((2, 3)))

    def encode_text(self, tokens: Tensor) -> Tensor:
        return (self.words(tokens) * (tokens > 0)[..., None]).sum(1)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        return self.encode_image(images) @ self.encode_text(tokens).T


def build() -> tuple[nn.Module, object]:
    """Return the network and its tokenizer, as a user's function does."""
    return TwoEncoders(), tokenize


def save_hugging_face(kind: str, folder: Path) -> None:
    """Write CLIP or Siglip with random weights, its image processor and a tokenizer of WORDS."""
    import tokenizers
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    vision = {**sizes, "image_size": 64, "patch_size": 8}
    words = {**sizes, "vocab_size": 24, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2}
    own = {"projection_dim": 24} if kind == "CLIP" else {}
    config = getattr(transformers, f"{kind}Config")(vision_config=vision, text_config=words, **own)
    getattr(transformers, f"{kind}Model")(config).eval().save_pretrained(folder)
    side = {"height": 64, "width": 64}
    getattr(transformers, f"{kind}ImageProcessor")(size=side, crop_size=side).save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    words_only = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words_only.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words_only.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words_only, **special).save_pretrained(folder)
