"""Names of units from words and an encoder: right, absent or refused, and never without the source of the name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from saliscope import runs
from saliscope.errors import Refused
from saliscope.runs.results import IndexResult
from saliscope.runs.units import open_index
from saliscope.zoo import Model, ModelUnavailable, Preparation
from saliscope.zoo.sources.hf_models import SentenceEncoder, load_sentence_encoder
from tests.saliscope.runs.test_dataset_cli import saliscope
from tests.saliscope.runs.test_units import COUNT, Stopped, color_model, source
from tests.support.two_encoders import save_hugging_face

__all__ = ["source"]  # a fixture

WORDS = ["red", "green", "blue", "zebra", "a car"]
VOCABULARY = "red green blue zebra car warm cold".split()
SIZE = 8
PLAIN = Preparation(32, 32, (0.0,) * 3, (1.0,) * 3)


def tokenize(texts: list[str]) -> Tensor:
    """Return ids [M, SIZE] of words, the last one of unknown words, 0 after the end."""
    known = {word: index for index, word in enumerate(VOCABULARY, 1)}
    rows = [[known.get(word.lower(), len(known) + 1) for word in text.split()] for text in texts]
    return torch.tensor([(row + [0] * SIZE)[:SIZE] for row in rows])


class Words(nn.Module):
    """Gives each word of the vocabulary its direction, and 0 to all others."""

    def __init__(self, directions: dict[str, int]) -> None:
        super().__init__()
        self.table = nn.Embedding(len(VOCABULARY) + 2, SIZE)
        with torch.no_grad():
            self.table.weight.zero_()
            for word, direction in directions.items():
                self.table.weight[VOCABULARY.index(word) + 1, direction] = 1.0

    def encode_text(self, tokens: Tensor) -> Tensor:
        return self.table(tokens).sum(1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


class Encoder(Words):
    """Sees the colors of an image ("right"), the noise in its corner ("random"), or the same in all ("constant")."""

    def __init__(self, kind: str) -> None:
        super().__init__({word.split()[-1]: direction for direction, word in enumerate(WORDS)})
        self.kind = kind

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        if self.kind == "random":
            return torch.sin(1e5 * images[:, 2, -1, -SIZE:])
        colors = images.mean((2, 3)) if self.kind == "right" else torch.ones(len(images), 3)
        return nn.functional.pad(colors - (self.kind == "right") * colors.mean(1, keepdim=True), (0, SIZE - 3))


def encoder(kind: str) -> Model:
    return Model(f"{kind} encoder", Encoder(kind).eval(), [], PLAIN, tokenize=tokenize)


def sentences() -> Model:
    """Return an encoder of text only, for which red is warm, and green and blue are cold."""

    def both(texts: list[str]) -> dict[str, Tensor]:
        return {"input_ids": tokenize(texts), "attention_mask": torch.ones(len(texts), SIZE)}

    network = SentenceEncoder(Words({"red": 0, "warm": 0, "green": 1, "blue": 1, "cold": 1}), first=False)
    return Model("sentences", network.eval(), [], PLAIN, tokenize=both)


def index(source: str, out: Path, words=WORDS, encoder: str | Model = "", **options) -> IndexResult:
    chosen = {"layers": ["1"], "top": 3, "batch_size": 8, "words": words, "encoder": encoder}
    return runs.index(source, out, model=color_model(), **chosen, **options)


def names(out: Path) -> list[str | None]:
    rows = open_index(out).units.to_pylist()
    assert all((row["name"] is None) == (row["auc"] is None) for row in rows)
    assert all(row["auc"] >= 0.85 for row in rows if row["name"])
    return [row["name"] for row in rows]


def test_channels_have_the_words_of_a_right_encoder_after_a_stop_too(source, tmp_path):
    def stop(done: int, total: int) -> None:
        if done > 3 * COUNT + 1 + 16:  # while the encoder reads the images
            raise Stopped

    file, seen = tmp_path / "words.txt", list[int]()
    file.write_text("\n".join([*WORDS, "", ""]), encoding="utf-8")
    with pytest.raises(Stopped):
        index(source, tmp_path / "units", file, encoder("right"), progress=stop)
    done = index(source, tmp_path / "units", file, encoder("right"), progress=lambda n, total: seen.append(n))
    assert names(tmp_path / "units") == ["red", "green", "blue", None, None]
    assert min(seen) > 3 * COUNT + 1 + 16, "finished batches are kept"
    assert done.names_by == "words.txt and right encoder" and done.to_dict()["names_by"] == done.names_by
    assert f"{done.names_by}: 72 of 72 images clearly show one word" in str(done)
    found = open_index(tmp_path / "units")
    assert found.settings["names_by"] == json.loads(found.units.schema.metadata[b"saliscope"])["names_by"]
    assert str(index(source, tmp_path / "units", file, encoder("right"))).count("already finished") == 1
    for words, other in ((WORDS[:4], encoder("right")), (file, encoder("random"))):
        with pytest.raises(Refused, match="other settings: .*names_by"):
            index(source, tmp_path / "units", words, other)


@pytest.mark.parametrize(("kind", "labeled"), [("random", range(40, 73)), ("constant", range(1))])
def test_an_encoder_that_does_not_see_colors_gives_no_names(kind, labeled, source, tmp_path):
    """Its words are chance, or none of them is clear."""
    done = index(source, tmp_path, WORDS, encoder(kind))
    assert names(tmp_path) == [None] * 5 and done.counts["labeled"] in labeled and done.counts["tested"] == 3 * COUNT


def test_a_sentence_encoder_finds_the_word_of_each_label(source, tmp_path):
    """Channel 1 only responds to one of two cold colors, which is not enough for the name "cold"."""
    index(source, tmp_path / "units", ["warm", "cold"], sentences())
    assert names(tmp_path / "units") == ["warm", None, None, None, None]
    with pytest.raises(Refused, match="sentences reads only text, but no image of .* has a label.*CLIP"):
        index(f"{source}/red/00.png", tmp_path / "one", ["warm", "cold"], sentences())


@pytest.mark.parametrize("first", [False, True])
def test_sentence_encoders_of_transformers(first, tmp_path):
    """Oracle: the states of the network, with the pooling that sentence-transformers describes."""
    transformers = pytest.importorskip("transformers")
    save_hugging_face("CLIP", tmp_path)  # for its tokenizer
    for path in (*tmp_path.glob("*.safetensors"), *tmp_path.glob("*config.json")):
        path.unlink()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    net = transformers.BertModel(transformers.BertConfig(vocab_size=24, **sizes), add_pooling_layer=False).eval()
    net.save_pretrained(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    model = load_sentence_encoder(f"hf:{tmp_path}")
    tokens = model.tokenize(["a dog", "red car in grass"])
    with torch.no_grad():
        found = model.network.get_text_features(**tokens)
        for row, length in zip(found, (4, 6), strict=True):  # with start and end
            at = 0 if length == 4 else 1
            states = net(input_ids=tokens["input_ids"][at : at + 1, :length]).last_hidden_state[0]
            torch.testing.assert_close(row, states[0] if first else states.mean(0))
    for file, content, message in (
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools its tokens by pooling_mode_max"),
        ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "layers after the pooling .Dense"),
    ):
        (tmp_path / "1_Pooling" / "config.json").unlink(missing_ok=True)
        (tmp_path / file).write_text(json.dumps(content))
        with pytest.raises(ModelUnavailable, match=message):
            load_sentence_encoder(f"hf:{tmp_path}")


def test_the_command_with_clip(source, tmp_path, recwarn):
    """A random CLIP finds the same word for all images, so no channel has a name."""
    pytest.importorskip("transformers")
    save_hugging_face("CLIP", tmp_path / "clip")
    (tmp_path / "words.txt").write_text("dog\ncat\nred car\nblue sky\n", encoding="utf-8")
    named = "--words", tmp_path / "words.txt", "--encoder", f"hf:{tmp_path / 'clip'}"
    code, output = saliscope(
        *("index", source, "--out", tmp_path / "units", "--layers", "head", "--limit", 8, "--workers", 0),
        *named,
        *("--format", "json"),
    )
    assert code == 0, output
    found, _ = json.JSONDecoder().raw_decode(output, output.index("{\n"))  # progress may follow
    assert found["names_by"] == "words.txt and clip" and (found["counts"]["tested"], found["counts"]["named"]) == (8, 0)


@pytest.mark.parametrize(
    ("words", "chosen", "message"),
    [
        (WORDS, "", "--words needs --encoder.*decides.*--encoder hf:"),
        ("", "efficientnet_lite0", "--encoder needs --words.*one word per line"),
        (WORDS, "efficientnet_lite0", "has no text encoder.*hf:openai/clip"),
        (["red"], "right", "The list of words has 1 word, .*at least two"),
        (["red", "blue", " Red "], "right", "'Red' twice.*Remove one"),
        (["red", "colorful", "green", "vivid"], "right", "same embedding for 'colorful' and 'vivid'.*Remove one"),
        ("missing.txt", "right", "Cannot read 'missing.txt': No such file.*one word per line"),
        (["red", "one two three four five"], "right", "ignores the end of .*Shorten"),
    ],
)
def test_wrong_uses_are_refused_before_any_image_is_read(words, chosen, message, tmp_path):
    with pytest.raises(Refused, match=message), warnings.catch_warnings():
        index("no/such/images", tmp_path, words, encoder("right") if chosen == "right" else chosen)
