"""Image classifiers of transformers: `hf:USER/NAME` or `hf:USER/NAME@REVISION` on the Hub, or `hf:FOLDER`.

Networks with an image and a text encoder, such as CLIP and SigLIP, are loaded with their tokenizer, and so are sentence
encoders such as MiniLM, which are not image models and are only loaded by `load_sentence_encoder`. The preprocessing
is that of the processor that comes with the weights, the class names are those of the configuration. Code from the Hub
is never run. transformers is an optional dependency and is imported when one of these names is used.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import MODES, Model, Preparation, Tokenize
from saliscope.zoo.overrides import UNKNOWN
from saliscope.zoo.sources import hub
from saliscope.zoo.sources.source import ModelUnavailable, OpenSource
from saliscope.zoo.transforms import BadTransform, measure

PREFIX = "hf:"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""transformers only reads local files, and never runs code that came with the weights."""
TOKENS = 64
"""Tokens of a word or a label that a sentence encoder reads."""


class HuggingFaceModels(OpenSource):
    """Image classifiers in the cache of the Hub, or in a folder written by `save_pretrained`."""

    def accepts(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def load(self, name: str, progress: Progress | None = None) -> Model:
        folder = _folder(name)
        notes = hub.verify(folder)
        config = _configuration(name, folder)
        architecture = _two_encoders(config) or _transformers().AutoModelForImageClassification
        try:
            network, report = architecture.from_pretrained(
                folder, config=config, dtype=torch.float32, weights_only=True, output_loading_info=True, **LOCAL
            )
        except Exception as error:  # many types of errors from transformers and torch
            raise ModelUnavailable(f"Cannot load {name!r}: {hub.first_line(error)}") from error
        _check_complete(name, report)
        return dataclasses.replace(_model(name, network, config, folder), notes=notes)

    def build(self, name: str, classes: int | None) -> Model:
        folder = _folder(name)
        config = _configuration(name, folder)
        if architecture := _two_encoders(config):
            return _model(name, architecture(config), config, folder)
        if classes and classes != config.num_labels:
            config.num_labels = classes
        network = _transformers().AutoModelForImageClassification.from_config(config, trust_remote_code=False)
        return _model(name, network, config, folder)

    def may_download(self, name: str) -> bool:
        return not hub.forbidden()

    def ready(self, name: str) -> bool:
        try:
            return _folder(name, fetch=False).is_dir()
        except ModelUnavailable:
            return False


SOURCE = HuggingFaceModels()


class SentenceEncoder(nn.Module):
    """A text encoder without an image encoder. The embedding is that of the first token, or the mean of all tokens."""

    def __init__(self, model: nn.Module, first: bool) -> None:
        super().__init__()
        self.model, self.first = model, first

    def get_text_features(self, **tokens: Tensor) -> Tensor:
        """Return the embeddings [M, D] of tokens, as `explainers.text_embedding` calls it."""
        return self(**tokens)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the embeddings [M, D] of tokens."""
        states: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.first:
            return states[:, 0]
        weights = attention_mask[..., None].to(states)
        return (states * weights).sum(1) / weights.sum(1)


def load_sentence_encoder(name: str) -> Model | None:
    """Return a sentence encoder with its tokenizer, or None if the name is that of another network.

    Errors   ModelUnavailable
    """
    if not name.startswith(PREFIX):
        return None
    folder = _folder(name)
    config, transformers = _any_configuration(name, folder), _transformers()
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        return None
    notes, first = hub.verify(folder), _pools_first_token(name, folder)
    try:
        network, report = transformers.AutoModel.from_pretrained(
            folder, config=config, dtype=torch.float32, weights_only=True, output_loading_info=True, **LOCAL
        )
    except Exception as error:  # many types of errors from transformers and torch
        raise ModelUnavailable(f"Cannot load {name!r}: {hub.first_line(error)}") from error
    missing = [key for key in report.get("missing_keys") or () if not key.startswith("pooler.")]  # it is not used
    _check_complete(name, {**report, "missing_keys": missing})
    encoder = SentenceEncoder(network, first).eval().requires_grad_(False)
    return Model(name, encoder, [], UNKNOWN, notes=notes, tokenize=_tokenizer(name, folder, TOKENS, padding=True))


def _pools_first_token(name: str, folder: Path) -> bool:
    """Return whether the embedding is that of the first token, and not the mean.

    Errors   ModelUnavailable for other kinds of pooling, and for layers after it
    """
    found = [json.loads(path.read_bytes()) for path in (folder / hub.POOLING, folder / hub.MODULES) if path.is_file()]
    pooling: dict[str, Any] = next((each for each in found if isinstance(each, dict)), {})
    modules = [each["type"].rpartition(".")[2] for each in next((each for each in found if isinstance(each, list)), [])]
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    modes = modes or ["pooling_mode_" + str(pooling.get("pooling_mode", "mean"))]
    if len(modes) > 1 or not modes[0].startswith(("pooling_mode_mean", "pooling_mode_cls")):
        raise ModelUnavailable(f"{name!r} pools its tokens by {', '.join(modes)}. Use an encoder with mean or cls")
    if others := sorted({*modules} - {"Transformer", "Pooling", "Normalize"}):
        raise ModelUnavailable(f"{name!r} has layers after the pooling ({', '.join(others)}). Use an encoder without")
    return modes[0].startswith("pooling_mode_cls")


def _transformers() -> Any:
    try:
        import transformers  # an extra, which takes seconds to start
    except ImportError as error:
        raise ModelUnavailable(hub.missing("transformers", "hf")) from error
    return transformers


def _folder(name: str, fetch: bool = True) -> Path:
    """Return the folder with config.json, the weights and the settings of the processor.

    Errors   ModelUnavailable
    """
    _transformers()
    repository = name.removeprefix(PREFIX)
    folder = Path(repository).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelUnavailable(f"{folder} has no config.json. Use a folder written by save_pretrained")
        return folder
    if repository.startswith(("/", ".", "~")) or "\\" in repository or repository.count("/") > 1:
        raise ModelUnavailable(f"Folder not found: {folder}")
    return hub.folder(repository, fetch=fetch)


def _configuration(name: str, folder: Path) -> Any:
    """Return the configuration of a network that reads images.

    Errors   ModelUnavailable if transformers does not have the network's code, or if it is not an image classifier
    """
    config, transformers = _any_configuration(name, folder), _transformers()
    if _two_encoders(config) is None and type(config) not in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise ModelUnavailable(
            f"{name!r} has the model type {config.model_type!r}, for which transformers has no image classifier"
        )
    return config


def _any_configuration(name: str, folder: Path) -> Any:
    """Return the configuration of the network.

    Errors   ModelUnavailable if transformers does not have the network's code
    """
    transformers = _transformers()
    try:
        return transformers.AutoConfig.from_pretrained(folder, **LOCAL)
    except Exception as error:  # unreadable files, custom code, networks of a newer version
        raise ModelUnavailable(
            f"{name!r} is not supported by transformers {transformers.__version__} ({hub.first_line(error)}). Code "
            "that comes with weights is never run"
        ) from error


def _two_encoders(config: Any) -> Any:
    """Return the class of a network with an image and a text encoder, or None for other networks."""
    found = getattr(_transformers(), (config.architectures or [""])[0], None)
    return found if hasattr(found, "get_image_features") and hasattr(found, "get_text_features") else None


def _tokenizer(name: str, folder: Path, longest: int, padding: bool | str) -> Tokenize:
    """Return the tokenizer in the folder, which cuts sentences to the longest length.

    Errors   ModelUnavailable
    """
    if not any(True for pattern in hub.VOCABULARY for _ in folder.glob(pattern)):
        # transformers would return a tokenizer without words
        raise ModelUnavailable(f"{name!r} has no tokenizer ({', '.join(hub.VOCABULARY)}). Save it in the same folder")
    try:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(folder, **LOCAL)
    except Exception as error:  # missing or unreadable files
        raise ModelUnavailable(f"Cannot load the tokenizer of {name!r}: {hub.first_line(error)}") from error

    def tokenize(sentences: list[str]) -> dict[str, Tensor]:
        found = tokenizer(sentences, padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        return {key: value for key, value in found.items() if key != "token_type_ids"}

    return tokenize


def _check_complete(name: str, report: dict[str, Any]) -> None:
    """Check for missing weights, which transformers initializes randomly, such as the head of a pretrained backbone.

    Errors   ModelUnavailable
    """
    problems = []
    for title, key in (("missing", "missing_keys"), ("shape mismatch", "mismatched_keys")):
        names = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in report.get(key) or ())
        if names:
            more = f" and {len(names) - 12} more" if len(names) > 12 else ""
            problems.append(f"{title} ({len(names)}): {', '.join(names[:12])}{more}")
    if problems:
        raise ModelUnavailable(f"The weights of {name!r} are incomplete: {'; '.join(problems)}")


def _model(name: str, network: nn.Module, config: Any, folder: Path) -> Model:
    """Return the network with its preprocessing and labels; UNKNOWN preprocessing if the folder has none."""
    if _two_encoders(config):
        channels = int(getattr(config.vision_config, "num_channels", 3) or 3)
        # SigLIP was trained with sentences that fill the whole context.
        tokenize = _tokenizer(name, folder, config.text_config.max_position_embeddings, padding="max_length")
        return Model(name, network, [], _preparation(name, channels, folder), tokenize=tokenize)
    names = config.id2label or {}
    labels = [str(names[index]) for index in range(len(names))] if set(names) == set(range(len(names))) else []
    return Model(name, network, labels, _preparation(name, int(getattr(config, "num_channels", 3) or 3), folder))


def _preparation(name: str, channels: int, folder: Path) -> Preparation:
    """Return the preprocessing of the processor; only its size, mean and std for other than 1 or 3 channels."""
    if not any((folder / file).is_file() for file in hub.SETTINGS[1:]):
        return UNKNOWN
    try:
        processor = _transformers().AutoImageProcessor.from_pretrained(folder, **LOCAL)
        if channels in MODES:
            return measure(_pixels(processor), channels)
        return _of_bands(processor, channels)
    except Exception as error:  # reading and running the processor raises many types of errors
        raise ModelUnavailable(f"Cannot use the image processor of {name!r}: {hub.first_line(error)}") from error


def _pixels(processor: Any) -> Callable[[Image.Image], Tensor]:
    """Return a function that returns the processor's output [C, h, w] for an image."""

    def pixels(image: Image.Image) -> Tensor:
        values = processor(images=image, return_tensors="pt")["pixel_values"]
        return values[0]

    return pixels


def _of_bands(processor: Any, channels: int) -> Preparation:
    """Return the size, mean and std in the settings of the processor, for a network of N bands.

    Errors   BadTransform if the settings are for another number of channels
    """
    mean, std, size = processor.image_mean, processor.image_std, dict(processor.size or {})
    side = size.get("shortest_edge")
    height, width = int(size.get("height", side) or 0), int(size.get("width", side) or 0)
    if mean is None or len(mean) != channels or len(std) != channels or not (height and width):
        raise BadTransform(f"its settings are not for {channels} channels. Set size, mean and std")
    return Preparation(height if height == width else (height, width), (height, width), tuple(mean), tuple(std))
