"""The stored run of the training lab is what the first preset computes."""

from __future__ import annotations

import json
import re

import pytest

from saliscope.page.lab import example


def test_the_stored_run_matches_the_first_preset() -> None:
    stored, computed = json.loads(example.FILE.read_text(encoding="utf-8")), example.compute()
    assert re.fullmatch(r"Example: trained for 240 steps · loss [\d.e-]+", stored["line"])
    assert stored["at"] == computed["at"] and stored["layers"] == computed["layers"] and stored["state"] == "done"
    assert stored["loss"][:20] == pytest.approx(computed["loss"][:20], rel=1e-3), "rounding grows with the steps"
    assert stored["loss"][-1] < stored["loss"][0] / 100
