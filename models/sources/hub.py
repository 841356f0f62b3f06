"""Folders of the Hugging Face hub in its own cache, downloaded where that is allowed; no code of theirs is run.

What is in the cache is taken without asking the network. Where the hub cannot be reached, that is said at once: its own
client tries for a minute.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from models import settings
from models.sources.source import ModelUnavailable

TIMEOUT = 10.0
"""Seconds in which the hub must answer."""
SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
"""Files of weights; the second kind only where there is none of the first."""


def missing(package: str, extra: str) -> str:
    """How to install a package that is not there."""
    return f"The package {package} is not installed. Install it with: pip install {package} (the extra {extra!r})"


def folder(repository: str, files: Sequence[str] = (), fetch: bool = True) -> Path:
    """The local folder of `name/of/repository` or `name@revision`, with its settings and its weights.

    `files` are the names of its weights, any one of which is enough; none for the usual ones. Without `fetch` only the
    cache is looked at.

    Errors   ModelUnavailable, with what is missing and where to put it
    """
    import huggingface_hub  # of the extras timm and hf

    name, _, revision = repository.partition("@")
    wanted = [[*SETTINGS, *files]] if files else [[*SETTINGS, *SAFE], [*PICKLED]]
    found = _cached(name, revision, wanted)
    if found is not None:
        return found
    hub = huggingface_hub.constants
    variable = "HOOKLENS_OFFLINE" if settings.offline() else "HF_HUB_OFFLINE" if hub.HF_HUB_OFFLINE else ""
    if variable or not fetch:
        raise ModelUnavailable(
            f"{name} is not complete in the cache of Hugging Face ({hub.HF_HUB_CACHE}), and {variable} forbids "
            f"downloading it. Fill the cache where there is a network (hf download {name}), or name a local folder"
        )
    _reach(name, huggingface_hub.hf_hub_url(name, "config.json"))
    try:
        for patterns in wanted:
            path = Path(huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=[*patterns]))
            if _has(path, wanted):
                return path
    except Exception as error:  # the client's own errors, of the network and of the disk
        raise ModelUnavailable(f"{name} could not be downloaded: {first_line(error)}") from error
    raise ModelUnavailable(f"{name} holds no weights that can be read ({', '.join(files or (SAFE[0], PICKLED[0]))})")


def _cached(name: str, revision: str, wanted: Sequence[Sequence[str]]) -> Path | None:
    """The folder in the cache where it is complete; nothing is asked of the network."""
    import huggingface_hub  # of the extras timm and hf

    try:
        path = Path(huggingface_hub.snapshot_download(name, revision=revision or None, local_files_only=True))
    except huggingface_hub.errors.HFValidationError as error:
        raise ModelUnavailable(f"{name!r} is neither a folder here nor a name of Hugging Face's hub") from error
    except Exception:  # not there, in the words of several versions
        return None
    return path if _has(path, wanted) else None


def _has(path: Path, wanted: Sequence[Sequence[str]]) -> bool:
    """Whether the folder has a file of weights."""
    weights = {name for names in wanted for name in names} - set(SETTINGS)
    return any(True for pattern in weights for _ in path.glob(pattern))


def _reach(name: str, url: str) -> None:
    """One question to the hub. Any answer will do; its client then says what is wrong with the name."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return
    except OSError as error:
        raise ModelUnavailable(
            f"{name} is not in the cache of Hugging Face, and the hub cannot be reached. Fill the cache where there is "
            f"a network (hf download {name}), or name a local folder"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's text, to be followed by more."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
