"""Benchmarks: run time next to other libraries, faithfulness, precision, the page. Nothing imports this package."""

import argparse
import os
from typing import Any

# The memory profiler would print log lines into the table; must be set before torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("TQDM_DISABLE", "1")  # grad-cam draws progress bars


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Read the options of a command, which are described in its docstring.

    A default of False is a flag, and a type stands for an option without a default. A list takes several values, and a
    tuple several of its names, by default all.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag, first = f"--{name.replace('_', '-')}", default[0] if isinstance(default, list) else default
        kind = first if isinstance(first, type) else type(first)
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, nargs="+", choices=default, default=default, metavar="NAME")
        else:
            several = "+" if isinstance(default, list) else None
            parser.add_argument(flag, type=kind, nargs=several, default=None if first is kind else default)
    return parser.parse_args()


def filled(page: str, name: str, lines: list[str]) -> str:
    """Return a page with other lines between its two comments of this name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    head, _, rest = page.partition(begin)
    return head + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
