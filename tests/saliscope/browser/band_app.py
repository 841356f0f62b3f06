"""Run the app with small random networks of 5, 3 and 1 channels instead of the built-in ones: python -m … --port N."""

from __future__ import annotations

import argparse

import torch

import explainers
from saliscope.page import build
from saliscope.session import model_cache
from saliscope.session.answers import LoadedModel
from saliscope.zoo import ModelInfo
from tests.saliscope.images.test_bands import model

CHANNELS = (5, 3, 1)


def install() -> None:
    """Replace the available models by these networks; the first is the default."""
    infos = []
    for channels in CHANNELS:
        made = model(channels)
        images = torch.zeros(1, channels, *made.size)
        layers = explainers.list_layers(made.network, images, spatial=True)
        default = explainers.default_layer(made.network, images)
        title = f"A network of {channels} channel{'s' * (channels > 1)}"
        model_cache._loaded[made.name] = LoadedModel(
            made.name, title, made, made.labels, layers, default, torch.device("cpu")
        )
        infos.append(ModelInfo(made.name, title, "random", 4, 0.1, made.side, cached=True, fetched=True, accuracy=None))
    model_cache.list_models = lambda: infos
    model_cache.start = lambda *_, **__: model_cache.ready.set()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    install()
    build.serve(build.build(), port=parser.parse_args().port)
