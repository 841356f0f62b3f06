"""Building blocks of perturbation methods: baselines, segments, coalitions, control maps, reproducible random numbers.

The methods themselves are in `methods/perturbation`. Only `coalitions` runs a network.
"""
