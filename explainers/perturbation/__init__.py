"""What an image is perturbed with: baselines, segments, coalitions of segments, reproducible random numbers.

The methods that perturb are in `methods/perturbation`; only `coalitions` runs a network, for all of them.
"""
