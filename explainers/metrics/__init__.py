"""How far a map can be believed: metrics, each beside the same number for controls.

`run` asks (evaluate), `metric` is the table of metrics, `formulas/` holds a formula a paper, `evaluation` is the
answer. Maps are made in methods/; what images are perturbed with stands in perturbation/.
"""
