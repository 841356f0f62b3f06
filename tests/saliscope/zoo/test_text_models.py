"""Networks with a text encoder: from Hugging Face folders, users' functions, open_clip, and docs/your_model.md."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import explainers
from saliscope import example, zoo
from saliscope.zoo import Model, ModelUnavailable, load_model, text
from tests.support import two_encoders
from tests.support.two_encoders import TwoEncoders, save_hugging_face, tokenize

IMAGES = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def load(name: str, **keywords: Any) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about the assumed preprocessing
        return load_model(name, **keywords)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_hugging_face(kind: str, tmp_path: Path) -> None:
    """Oracles: the published processor and tokenizer, and the library's calls of the network itself."""
    transformers = pytest.importorskip("transformers")
    save_hugging_face(kind, tmp_path)
    model = load(f"hf:{tmp_path}")
    net = getattr(transformers, f"{kind}Model").from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokens = tokenizer(["a photo of a dog", "a cat"], padding="max_length", max_length=12, return_tensors="pt")
    ids = tokens if kind == "CLIP" else {name: tokens[name] for name in ("input_ids", "attention_mask")}
    own, other = explainers.text_embedding(net, {k: v for k, v in ids.items() if k != "token_type_ids"})

    for target, expected in (
        ("a photo of a dog", explainers.Similarity(own)),
        (" a photo  of a dog |  a cat ", explainers.Similarity(own, against=other)),
    ):
        sentences = text.parse(target)
        similarity = text.target(model, sentences)
        maps = explainers.grad_eclip(model.network, IMAGES, similarity)
        torch.testing.assert_close(
            maps, explainers.grad_eclip(net, IMAGES, expected, forward=net.get_image_features), rtol=1e-4, atol=1e-7
        )
        assert maps.amax() > 0
    output = net.get_image_features(IMAGES)
    vector = output if isinstance(output, torch.Tensor) else output.pooler_output
    by_hand = torch.stack([vector[0] @ each / vector[0].norm() for each in (own, other)])
    torch.testing.assert_close(text.similarities(model.network(IMAGES), [own, other])[0], by_hand)
    assert (model.labels, model.score, model.size) == ([], "logit", (64, 64))
    photo = Image.new("RGB", (90, 70), (200, 30, 30))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(images=photo, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(model.prepare(photo), pixels, rtol=0, atol=2e-2)

    ten = "a photo of a dog and a cat in grass"  # with start and end, the twelve tokens of the text encoder
    assert text.embedding(model, ten).shape == own.shape
    with pytest.raises(text.BadSentence, match="ignores the end of “a photo of a dog and a cat in grass dog”"):
        text.embedding(model, f"{ten} dog")
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelUnavailable, match="has no tokenizer .*tokenizer.json.*Save it in the same folder"):
        load(f"hf:{tmp_path}")


def test_settings_and_tokenizers_that_do_not_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tests.support.two_encoders:build"
    with pytest.raises(ModelUnavailable, match="so it has no labels. Remove labels, and enter sentences as targets"):
        load(name, size=32, labels=["dog"])
    for given in (name, f"{name}?size=32&score=softmax"):
        with pytest.raises(ModelUnavailable, match="so it has no score"):
            load(given, **({} if "?" in given else {"size": 32, "score": "softmax"}))
    for built, message in (
        ((nn.Flatten(), tokenize), "has no text encoder"),
        ((nn.Conv2d(3, 3, 3), tokenize), r"must return an embedding \[1, D\], or have a method encode_image"),
        ((TwoEncoders(), lambda sentences: sentences), "The tokenizer of .* fails for “a photo of a dog”"),
        (
            (TwoEncoders(), lambda sentences: torch.full((1, 3), 99 + len(sentences[0]))),
            "The text encoder of .* fails for",
        ),
        ((TwoEncoders(), 3), "Return an nn.Module, a pair"),
    ):
        monkeypatch.setattr(two_encoders, "build", lambda built=built: built)
        with pytest.raises(ModelUnavailable, match=message):
            load(name, size=32)


def test_sentences_of_a_target() -> None:
    """Targets that are refused are in tests/saliscope/compute/test_sentences.py."""
    assert text.parse("  ") is None and text.parse("|") is None
    assert text.parse("cats|dogs and more") == text.Sentences("cats|dogs and more")  # a bar within a word
    assert text.parse("a dog |") == text.Sentences("a dog")
    assert text.parse("a dog |  a   cat") == text.Sentences("a dog", "a cat")


def test_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracles: open_clip's own preprocessing and embeddings."""
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    vision = {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32}
    words = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    net = open_clip.model.CLIP(32, vision, words).eval()
    form = open_clip.transform.PreprocessCfg(size=64)
    open_clip.model.set_model_preprocess_cfg(net, vars(form))
    monkeypatch.setattr(two_encoders, "build", lambda: (net, open_clip.get_tokenizer("ViT-B-32")))
    model = load("tests.support.two_encoders:build")
    tokens = open_clip.get_tokenizer("ViT-B-32")(["a photo of a dog"])

    photo = Image.radial_gradient("L").resize((90, 70)).convert("RGB")
    expected = open_clip.transform.image_transform_v2(form, is_train=False)(photo)[None]
    assert torch.equal(model.prepare(photo), expected)
    torch.testing.assert_close(text.embedding(model, "a photo of a dog"), net.encode_text(tokens, normalize=True)[0])
    with pytest.raises(text.BadSentence, match="ignores the end"):
        text.embedding(model, "dog " * 76)
    assert text.embedding(model, "dog " * 75).shape == (32,)


# docs/your_model.md

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8"), re.S)


def test_examples_with_a_text_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs with a small network in place of open_clip's, the call with a small CLIP."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    build, call = (next(block for block in BLOCKS if word in block) for word in ("open_clip", "text_embedding"))
    parts = {"create_model_and_transforms": lambda *_, **__: (TwoEncoders(), None, None)}
    monkeypatch.setitem(sys.modules, "open_clip", SimpleNamespace(**parts, get_tokenizer=lambda _: tokenize))
    Path("my_clip.py").write_text(build, encoding="utf-8")
    own = zoo.load_model("my_clip.py:build", size=32, mean=[0.5] * 3, std=[0.5] * 3)
    assert own.tokenize is tokenize and own.network(torch.zeros(1, 3, 32, 32)).shape == (1, 12)
    save_hugging_face("CLIP", Path("my_clip"))
    names: dict[str, Any] = {"load_model": zoo.load_model, "photo": example("dog")}

    exec(compile(call.replace("hf:openai/clip-vit-base-patch32", "hf:my_clip"), "docs/your_model.md", "exec"), names)

    assert names["explanation"].map.shape == (1, 8, 8) and Path("overlay.png").stat().st_size > 1000
