"""Where models come from: one file a source, with a `SOURCE` that has `list` and `load` (see `source.Source`).

Every source named in FILES is in `list_models()`, on the page and in the API, in this order.
"""

from importlib import import_module

from models.sources.source import Source

FILES = ("efficientnet_lite", "torchvision_classifiers", "torchvision_dense", "timm_models", "hf_models", "factories")
SOURCES: tuple[Source, ...] = tuple(import_module(f"{__name__}.{file}").SOURCE for file in FILES)
