"""The network that a call runs: a view in evaluation mode (no deep copy), a fused copy for many variants, a NaN check.

This package does not use layer layouts or targets. See `passes` for forward and backward passes.
"""
