"""Run a module with a planted fault: `python -m benchmarks.public.faults.run FAULT MODULE [ARGUMENT ...]`."""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Plant the fault in this process, then run the module as a program."""
    from benchmarks.public.faults import in_decoders, in_pages  # the decoders of pictures must not run this twice

    fault, module = sys.argv[1:3]
    sys.argv[:3] = [module]
    {**in_pages.FAULTS, **in_decoders.FAULTS}[fault]()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
