"""Planted faults, each of which a check of a public page must notice: `python -m benchmarks.public.faults`."""
