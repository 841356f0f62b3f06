"""Test every kind of method on many architectures: a correct map or a clear error. `python -m benchmarks.zoo`."""
