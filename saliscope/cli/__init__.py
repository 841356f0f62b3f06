"""The command line: one Typer application, its options and its messages."""
