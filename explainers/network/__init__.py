"""The network that a call runs: its evaluation-mode view (no deep copy), a fused copy for many variants, a NaN check.

Nothing here knows a layer's meaning or a target. Running the network forward and backward: `passes`.
"""
