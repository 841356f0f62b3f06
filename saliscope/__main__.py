"""`python -m saliscope` and the `saliscope` command."""

from __future__ import annotations

import sys

from saliscope import install


def main(arguments: list[str] | None = None) -> None:
    """Run a command; `arguments` default to those of the command line.

    Errors   SystemExit
    """
    try:
        import typer  # noqa: F401  part of the extras
    except ModuleNotFoundError:
        sys.exit(f"The command line needs the package typer, which is not installed. {install.hint('app')}.")
    from saliscope.cli import commands  # needs typer

    commands.main(arguments)


if __name__ == "__main__":
    main()
