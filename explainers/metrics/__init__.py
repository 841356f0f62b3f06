"""Metrics of maps, such as faithfulness and robustness, compared with the same metrics of control maps.

`run` has `evaluate`, `metric` the table of metrics, `formulas/` their formulas, and `evaluation` the result. Maps are
computed in methods/, perturbations of images are in perturbation/.
"""
