"""The finished run that the training lab shows before the user starts one: the first preset.

Run `python -m benchmarks.lab_example` to regenerate it; a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from saliscope.compute import model_cache
from saliscope.compute.jobs.runs import Run
from saliscope.compute.lab import messages, presets
from saliscope.compute.lab import training as lab_training
from saliscope.page.lab import view

FILE = Path(view.__file__).with_name("example.json")


def compute() -> dict[str, Any]:
    """Train the first preset and return its curves in the format of `page/lab/training.js`."""
    model_cache.start()
    list(model_cache.wait())
    preset = next(iter(presets.PRESETS.values()))
    *_, last = lab_training.train(presets.parse_form(asdict(preset)), Run(600.0))
    return view.curves(last) | {"id": 0, "line": messages.example_line(last.step, last.loss[-1])}


if __name__ == "__main__":
    FILE.write_text(json.dumps(compute(), separators=(",", ":")) + "\n", encoding="utf-8")
