"""Hooklens: see what an image network looked at, layer by layer. `python app.py` serves the page on this machine."""

from __future__ import annotations

import argparse
import os
from typing import Any


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings.

    Errors   SystemExit with a usage line for flags that do not exist
    """
    parser = argparse.ArgumentParser(prog="app.py", description=__doc__)
    parser.add_argument(
        "--model",
        default="auto",
        help="first model: efficientnet_lite0, resnet50 … (default: HOOKLENS_MODEL, else the one on board)",
    )
    parser.add_argument(
        "--host", default=None, help="address to listen on (default: this machine only; 0.0.0.0 for everybody)"
    )
    parser.add_argument("--port", type=int, default=None, help="port (default: the first free one from 7860)")
    parser.add_argument("--offline", action="store_true", help="never fetch anything")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Serve the page until it is interrupted."""
    settings = arguments(given)
    if settings.offline:
        os.environ["HOOKLENS_OFFLINE"] = "1"
    from ui import page  # after the settings above, which it reads when it is imported

    page.serve(page.build(), model=settings.model, host=settings.host, port=settings.port)


def __getattr__(name: str) -> Any:
    """`from app import demo` builds the page when it is asked for, and only then."""
    if name == "demo":
        from ui import page  # not for `python app.py --help`

        return page.build()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
