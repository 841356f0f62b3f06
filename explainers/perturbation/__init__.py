"""What a picture is perturbed with: baselines, segments, coalitions of segments, reproducible random numbers.

No network runs here; the methods that perturb are in `methods/perturbation`.
"""
