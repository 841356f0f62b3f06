"""Hooklens: see what an image network looked at, layer by layer. `python app.py` serves the page on this machine;
`python app.py replay bundle.zip` recomputes a map that was saved there and compares the two.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import socket
import sys
from typing import Any

OWN = ("weights", "labels", "mean", "std", "size")
"""The flags that say something about the model."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings.

    Errors   SystemExit with a usage line for flags that do not exist and for values that cannot be right
    """
    parser = argparse.ArgumentParser(prog="app.py", description=__doc__)
    parser.add_argument(
        "--model",
        default="auto",
        help="first model: efficientnet_lite0, resnet50 …, timm:NAME, hf:NAME or hf:FOLDER, package.module:factory or "
        "folder/file.py:factory (default: HOOKLENS_MODEL, else the one on board)",
    )
    parser.add_argument("--weights", type=_file, help="its weights: .safetensors, or a state dict of torch.save")
    parser.add_argument("--labels", type=_file, help="its class names: a text file, one a line, or JSON")
    parser.add_argument("--mean", type=numbers, help="mean of pixels in [0, 1], one a channel: 0.485,0.456,0.406")
    parser.add_argument("--std", type=numbers, help="standard deviation, likewise: 0.229,0.224,0.225")
    parser.add_argument("--size", type=size, help="pixels of its input: 224, or height x width: 160x224")
    parser.add_argument(
        "--host", default=None, help="address to listen on (default: this machine only; 0.0.0.0 for everybody)"
    )
    parser.add_argument("--port", type=_port, default=None, help="port (default: the first free one from 7860)")
    parser.add_argument(
        "--run", metavar="FOLDER", help="a run of hooklens explain: the links of its report open its pictures here"
    )
    parser.add_argument("--offline", action="store_true", help="never fetch anything")
    parser.add_argument("command", nargs="*", metavar="replay bundle.zip", help="recompute a bundle instead of serving")
    settings = parser.parse_args(given)
    if settings.command and (len(settings.command) != 2 or settings.command[0] != "replay"):
        parser.error(f"what is {' '.join(settings.command)!r}? Give nothing, or: replay bundle.zip")
    said = [f"--{name}" for name in OWN if getattr(settings, name) is not None]
    if said and settings.model == os.environ.get("HOOKLENS_MODEL", "auto") == "auto":
        parser.error(f"{', '.join(said)}: say which network with --model, such as package.module:factory or resnet18")
    return settings


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 1 to 65535")
    return int(text)


def _file(text: str) -> str:
    if not os.path.isfile(os.path.expanduser(text)):
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return os.path.expanduser(text)


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0.485,0.456,0.406") from None


def size(text: str) -> int | tuple[int, int]:
    parts = re.fullmatch(r"([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", text)
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give pixels, as 224 or 160x224 (height x width)")
    height, width = parts.groups()
    return (int(height), int(width)) if width else int(height)


def main(given: list[str] | None = None) -> None:
    """Serve the page until it is interrupted, or replay a bundle.

    Errors   SystemExit with the exit code of a replay
    """
    settings = arguments(given)
    if settings.offline:
        os.environ["HOOKLENS_OFFLINE"] = "1"
    own = {name: getattr(settings, name) for name in OWN if getattr(settings, name) is not None}
    if settings.command:
        from ui.share import replay  # as below

        sys.exit(replay.run(settings.command[1], print, model=settings.model, own=own))
    _refuse_address(settings.host, settings.port)
    from ui import page  # after the settings above, which it reads when it is imported

    if settings.run:
        _open_run(settings.run)
    page.serve(page.build(), model=settings.model, own=own, host=settings.host, port=settings.port)


def _refuse_address(host: str | None, port: int | None) -> None:
    """Errors   SystemExit where nobody can listen: a taken port, another machine's address"""
    try:
        found = socket.getaddrinfo(host or "127.0.0.1", port or 0, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            sys.exit(f"app.py: --port: {port} is taken. Choose another, or leave it out: then it is the first free one")
        if error.errno in (errno.EACCES, errno.EPERM):
            sys.exit(f"app.py: --port: {port} may not be opened by this user. Choose one above 1023")
        sys.exit(f"app.py: --host: this machine has no address {host!r}. Leave it out, or give 0.0.0.0 for everybody")


def _open_run(folder: str) -> None:
    """Errors   SystemExit for a folder that holds no finished run"""
    from ui.engine.messages import Refused  # as above
    from ui.many import past  # as above

    try:
        past.begin(folder)
    except Refused as refusal:
        sys.exit(f"app.py: --run: {refusal}")


def __getattr__(name: str) -> Any:
    """`from app import demo` builds the page when it is asked for, and only then."""
    if name == "demo":
        from ui import page  # not for `python app.py --help`

        return page.build()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
