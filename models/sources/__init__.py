"""Where models come from: one file a source, a subclass of `source.Source` with `list` and `load`.

Every source in SOURCES is in `list_models()`, on the page and in the API, in this order. `zoo` looks models up by name.
"""

from models.sources.efficientnet_lite import EfficientNetLite
from models.sources.source import Source
from models.sources.torchvision_classifiers import TorchvisionClassifiers

SOURCES: tuple[Source, ...] = (
    EfficientNetLite(),  # the default model
    TorchvisionClassifiers(),
)
