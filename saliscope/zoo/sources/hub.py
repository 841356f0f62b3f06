"""Folders of the Hugging Face Hub in its local cache, downloaded if that is allowed. No code in them is run.

A complete folder in the cache is used without network access. If the Hub cannot be reached, an error is raised within
seconds; the Hub's own client retries for a minute.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from saliscope import install
from saliscope.zoo import downloads, settings
from saliscope.zoo.sources.source import ModelUnavailable

TIMEOUT = 10.0
"""Seconds in which the Hub must respond."""
SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
VOCABULARY = ("tokenizer.json", "vocab.*", "spiece.model")
"""Files with the words of a tokenizer; one of them is sufficient."""
POOLING, MODULES = "1_Pooling/config.json", "modules.json"
"""Files of sentence-transformers, which say how a sentence encoder pools its tokens."""
TOKENIZER = (*VOCABULARY, "tokenizer_config.json", "special_tokens_map.json", "merges.txt", POOLING, MODULES)
"""Files of the tokenizer and the pooling of a model with a text encoder."""
SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
WEIGHTS = (".safetensors", ".bin")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
"""Files of weights. The pickled ones are only used if the safetensors files are missing."""


def missing(package: str, extra: str) -> str:
    """Return the message for a package that is not installed."""
    return f"The package {package} is not installed. {install.hint(extra)}"


def folder(repository: str, files: Sequence[str] = (), fetch: bool = True) -> Path:
    """Return the local folder of `name/of/repository` or `name@revision`, with its settings and weights.

    `files` are names of files of weights, any one of which is sufficient; empty means the usual names. If `fetch` is
    false, only the cache is searched.

    Errors   ModelUnavailable, with what is missing and where to put it
    """
    import huggingface_hub  # installed with the extras timm and hf

    name, _, revision = repository.partition("@")
    wanted = [[*SETTINGS, *files]] if files else [[*SETTINGS, *TOKENIZER, *SAFE], [*PICKLED]]
    cached = _cached(name, revision, wanted)
    if cached is not None:
        return cached
    variable = forbidden()
    if variable or not fetch:
        cache = huggingface_hub.constants.HF_HUB_CACHE
        raise ModelUnavailable(
            f"{name} is incomplete in the Hugging Face cache ({cache}), and {variable} forbids downloading "
            f"it. Fill the cache on a machine with network access (hf download {name}), or use a local folder"
        )
    _reach(name, huggingface_hub.hf_hub_url(name, "config.json"))
    try:
        for patterns in wanted:
            path = Path(huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=[*patterns]))
            if _has(path, wanted):
                return path
    except Exception as error:  # many types of errors from the client, the network and the disk
        raise ModelUnavailable(f"Cannot download {name}: {first_line(error)}") from error
    raise ModelUnavailable(f"{name} has no supported file of weights ({', '.join(files or (SAFE[0], PICKLED[0]))})")


def forbidden() -> str:
    """Return the variable that forbids downloads from the Hub, or an empty string."""
    if settings.offline():
        return "SALISCOPE_OFFLINE"
    try:
        from huggingface_hub.constants import HF_HUB_OFFLINE  # installed with the extras timm and hf
    except ImportError:
        return ""
    return "HF_HUB_OFFLINE" if HF_HUB_OFFLINE else ""


def _cached(name: str, revision: str, wanted: Sequence[Sequence[str]]) -> Path | None:
    """Return the folder in the cache if it is complete, without network access."""
    import huggingface_hub  # installed with the extras timm and hf

    try:
        path = Path(huggingface_hub.snapshot_download(name, revision=revision or None, local_files_only=True))
    except huggingface_hub.errors.HFValidationError as error:
        raise ModelUnavailable(f"{name!r} is neither a local folder nor a valid repository name") from error
    except Exception:  # not cached; the type of the error depends on the version
        return None
    return path if _has(path, wanted) else None


def _has(path: Path, wanted: Sequence[Sequence[str]]) -> bool:
    """Return whether the folder has a file of weights."""
    weights = {name for names in wanted for name in names} - {*SETTINGS, *TOKENIZER}
    return any(True for pattern in weights for _ in path.glob(pattern))


def _reach(name: str, url: str) -> None:
    """Check that the Hub responds. Any response is fine, because its client reports what is wrong with the name."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return
    except OSError as error:
        raise ModelUnavailable(
            f"{name} is not in the Hugging Face cache, and the Hub cannot be reached. Fill the cache on a machine with "
            f"network access (hf download {name}), or use a local folder"
        ) from error


def verify(folder: Path) -> tuple[str, ...]:
    """Compare the files of weights in a folder of the cache with their SHA-256, which the Hub states as their name.

    Returns  a note that names the files without a known SHA-256; empty for another folder
    Errors   ModelUnavailable for a file with another SHA-256
    """
    if folder.parent.name != "snapshots":
        return ()
    unknown = []
    for path in sorted(path for suffix in WEIGHTS for path in folder.glob(f"*{suffix}")):
        stored = path.resolve()  # on Windows, the cache may have a copy without this name
        if not re.fullmatch("[0-9a-f]{64}", stored.name):
            unknown.append(path.name)
        elif not downloads.has_digest(stored, stored.name):
            raise ModelUnavailable(f"Hash mismatch: {path.name} is damaged. Delete {stored} and try again")
    return (downloads.NOT_VERIFIED.format(names=", ".join(unknown)),) if unknown else ()


def first_line(error: Exception) -> str:
    """Return the first line of an error message, without the final dot."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
