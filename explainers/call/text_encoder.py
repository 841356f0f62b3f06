"""Embeddings of sentences, for targets of models with an image and a text encoder (CLIP, SigLIP)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import one_call
from explainers.errors import BadTarget, UnsupportedModel, kind_of
from explainers.outputs import describe_output, named


def text_embedding(model: nn.Module, tokens: Tensor | Mapping[str, Any]) -> Tensor:
    """Return the normalized embeddings of sentences, computed by the model's own text encoder.

    `tokens` is the result of the model's tokenizer: a tensor of ids [M, length], or a dict (`input_ids`,
    `attention_mask`) with tensors on the model's device. The model needs a method `encode_text` (open_clip and OpenAI's
    CLIP) or `get_text_features` (transformers); its image encoder is then `forward=model.encode_image` or
    `forward=model.get_image_features`. `Similarity(embedding[0])` explains the similarity of images to the first
    sentence, `Similarity(embedding[0], against=embedding[1:])` its contrast with the others. For several phrasings of
    one sentence, give their mean.

    Returns  (m, d), each row of length 1, in evaluation mode and without gradients
    Errors   UnsupportedModel for a model without a text encoder; BadTarget for tokens that are not a tensor or a dict

    Example
        >>> sentences = text_embedding(clip, torch.tensor([[3, 1, 4], [1, 5, 9]]))
        >>> target = Similarity(sentences[0], against=sentences[1])
        >>> saliency(clip, images, target, forward=clip.encode_image).shape
        torch.Size([1, 3, 224, 224])
    """
    if isinstance(tokens, Tensor):
        tokens = {"input_ids": tokens}
    elif not isinstance(tokens, Mapping):
        raise BadTarget(f"tokens is {kind_of(tokens)}. Give what the model's tokenizer returns: a tensor or a dict.")
    with one_call(model) as view:
        network: Any = view.network
        if hasattr(network, "get_text_features"):
            output = network.get_text_features(**tokens)
        elif hasattr(network, "encode_text"):
            output = network.encode_text(tokens["input_ids"])
        else:
            raise UnsupportedModel(
                f"This {type(view.model).__name__} has no text encoder: neither encode_text (open_clip) nor "
                "get_text_features (transformers). Pass the whole model, not only its image encoder, or give "
                "Similarity(embedding) with your own embedding."
            )
        vectors = output if isinstance(output, Tensor) else named(output, "text_embeds", "pooler_output")
        if not isinstance(vectors, Tensor) or vectors.ndim != 2:
            raise UnsupportedModel(
                f"The text encoder returned {describe_output(output)}, not embeddings [M, D]. Give "
                "Similarity(embedding) with your own embedding."
            )
        return torch.nn.functional.normalize(vectors.detach().float(), dim=1)
