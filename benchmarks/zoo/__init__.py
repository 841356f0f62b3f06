"""Networks that people bring, with every kind of method: right, or refused in words. `python -m benchmarks.zoo`."""
