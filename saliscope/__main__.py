"""`python -m saliscope` and the `saliscope` command."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run a command; `arguments` default to those of the command line.

    Errors   SystemExit
    """
    try:
        import typer  # noqa: F401  an extra: `pip install saliscope` installs the library only
    except ModuleNotFoundError:
        sys.exit('The command line is not installed. Install it with: pip install "saliscope[app]"')
    from saliscope.cli import commands  # needs typer

    commands.main(arguments)


if __name__ == "__main__":
    main()
