"""The app of the tests: python -m ... --port N.

Next to the built-in model it has small ones: two encoders, blobs, and bands. Channels of the built-in model have an index,
and agents have their tools.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradio import queueing

import saliscope.page  # noqa: F401 settings of gradio, before it is imported
from saliscope.compute import removal
from saliscope.compute.trust import engine
from saliscope.zoo import ModelInfo, catalog
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model
from saliscope.zoo.sources.source import Source
from tests.saliscope.images.test_bands import model
from tests.support import dense_nets, two_encoders, unit_indices

CHECKED = ("hires_cam", "guided_backprop")
"""Methods whose maps are checked automatically, on a machine of any speed; checks of all maps take most of the time."""


class Bands(Source):
    """Networks of 5, 3 and 1 channels as models "bands5", "bands3" and "bands1"."""

    def list(self) -> Iterator[ModelInfo]:
        for channels in (5, 3, 1):
            title = f"A network of {channels} channel{'s' * (channels > 1)}"
            yield ModelInfo(f"bands{channels}", title, "random", 4, 0.1, 32, True, True, None)

    def load(self, name: str, progress: Progress | None = None) -> Model:
        return model(int(name.removeprefix("bands")))


class CalmQueue(queueing.Queue):
    """Looks for requests 100 times a second instead of 1,000, which takes a tenth of a core while nothing happens."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.sleep_when_free = 0.01


if __name__ == "__main__":
    queueing.Queue = CalmQueue
    engine.STEPS, removal.SAMPLES = two_encoders.STEPS, 3
    engine.is_quick = lambda settings: settings.method.name in CHECKED
    catalog.add("tests.support.two_encoders:build", size=32)
    dense_nets.offer()
    catalog.SOURCES = (*catalog.SOURCES, Bands())
    sys.argv[0] = str(Path(__file__).parents[3] / "app.py")
    sys.argv += ["--mcp"] if find_spec("mcp") else []
    own = os.environ.get("GRADIO_TEMP_DIR")  # its parent is removed after the tests
    place = Path(own).parent if own else Path(tempfile.mkdtemp())
    sys.argv += ["--units", str(unit_indices.write_pages(place / "units"))]
    runpy.run_path(sys.argv[0], run_name="__main__")
