"""`python -m hooklens`, and the console script."""

from __future__ import annotations

import sys

CLONE = (
    "hooklens runs from a clone: git clone the project, then pip install -e '.[data]' in it. ({missing} is not here.)"
)


def main() -> None:
    """Run a command.

    Errors   SystemExit
    """
    try:
        from hooklens import cli  # its extra may not be installed
    except ModuleNotFoundError as error:
        sys.exit(CLONE.format(missing=error.name))
    cli.main()


if __name__ == "__main__":
    main()
