"""Building blocks of perturbation methods: baselines, segments, coalitions of segments, reproducible random numbers.

The methods themselves are in `methods/perturbation`. Only `coalitions` runs a network.
"""
