"""Run a module with a planted fault: `python -m benchmarks.public.faults.run FAULT[+FAULT] MODULE [ARGUMENT ...]`."""

from __future__ import annotations

import runpy
import sys

from benchmarks.public import meter
from benchmarks.public.faults import in_decoders
from saliscope import limits


def plant(name: str) -> None:
    """Plant a fault in this process, the meter, or a limit such as "SWEEP=1.0"."""
    limit, _, value = name.partition("=")
    if value:
        setattr(limits, limit, type(getattr(limits, limit))(float(value)))
    elif name == "meter":
        meter.install()
    elif name in in_decoders.FAULTS:
        in_decoders.FAULTS[name]()
    else:
        from benchmarks.public.faults import in_pages  # decoders do not have the page

        in_pages.FAULTS[name]()


def main() -> None:
    """Plant the fault in this process, then run the module as a program."""
    names, module = sys.argv[1:3]
    sys.argv[:3] = [module]
    for name in names.split("+"):
        plant(name)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
