"""Links that open an image in the app with the settings of the run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from explainers import METHODS
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.runs.report.analysis.columns import distinct
from saliscope.runs.settings import Settings


def check_link(address: str | None) -> None:
    """Check that the address of an app is a URL, if there is one.

    Errors   Refused
    """
    if address is not None and not address.startswith(("http://", "https://")):
        raise Refused(
            f"{address!r} is not a URL. Use one that starts with http:// or https://, such as http://127.0.0.1:7860."
        )


class Links:
    """Links of the images of a run into an app at `address`, by the name of an example or by SHA-256."""

    def __init__(self, address: str, settings: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
        self.address, self.settings = address.rstrip("/"), settings
        self.shared = set(classes) - set(distinct(classes))
        self.options = _options(settings)
        self.examples = _examples()

    def of(self, row: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the URL of a row, and whether every app has its image.

        A link never contains an image. An image that is not an example only opens in an app that was started with the
        run; other apps open with the settings and tell the user what to do.
        """
        digest = row.get("sha256") or ""
        example = self.examples.get(digest)
        target = row.get("target_index") if row.get("target") in self.shared else row.get("target")
        parameters = {
            "model": self.settings.get("model"),
            "layer": self.settings.get("layer"),
            "class": target,
            "method": self.settings.get("method"),
            "options": json.dumps(self.options) if self.options else "",
            "example": example or digest or "none",
        }
        query = urllib.parse.urlencode({name: value for name, value in parameters.items() if value not in (None, "")})
        return f"{self.address}/?{query}", example is not None


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the method that differ from its defaults, including seed and precision of the run."""
    run_settings = dataclasses.replace(Settings.of(settings), layer=None)
    options = METHODS[run_settings.method].options
    return {name: value for name, value in run_settings.method_options().items() if value != options[name].default}


def _examples() -> dict[str, str]:
    """Return the IDs of the app's examples by SHA-256; empty if the examples are not installed."""
    try:
        found = examples.all_examples().values()
        return {hashlib.sha256(each.path.read_bytes()).hexdigest(): each.id for each in found}
    except (OSError, ValueError, KeyError):
        return {}
