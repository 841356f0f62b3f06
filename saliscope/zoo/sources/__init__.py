"""Sources of models: one file per source, with a `SOURCE` that implements `source.Source`.

The models of every source in FILES are in `list_models()`, on the page and in the API, in this order.
"""

from importlib import import_module

from saliscope.zoo.sources.source import Source

FILES = ("model_files", "torchvision_models", "timm_models", "hf_models", "factories")
SOURCES: tuple[Source, ...] = tuple(import_module(f"{__name__}.{file}").SOURCE for file in FILES)
