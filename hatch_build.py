"""The metadata that the build computes: the project's addresses, and the README as the long description.

The README has relative links and, at its top, the settings of a Hugging Face Space, which a package index would show.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

BRANCH = "main"


def long_description(readme: str, repository: str) -> str:
    """Return the README without the settings of the Space, and with absolute addresses."""
    text = re.sub(r"\A---\n.*?\n---\n\s*", "", readme, flags=re.DOTALL)

    def absolute(link: re.Match[str]) -> str:
        image, label, address = link.groups()
        if re.match(r"[a-z]+:|#", address):
            return link.group()
        # GitHub shows a page for the address of an image, so images need the address of the file.
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/{BRANCH}/{address})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", absolute, text)


class CustomMetadataHook(MetadataHookInterface):
    """Add the addresses and the long description to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields that pyproject.toml declares as dynamic."""
        root = Path(self.root)
        repository = runpy.run_path(str(root / "saliscope" / "install.py"))["REPOSITORY"]
        metadata["urls"] = {
            "Source": repository,
            "Documentation": f"{repository}/blob/{BRANCH}/README.md",
            "Changelog": f"{repository}/blob/{BRANCH}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        text = long_description((root / "README.md").read_text(encoding="utf-8"), repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
