"""`check_explainer`: tests any method against the contract of all methods, in small named checks.

`context` is what a check gets, `fixtures` its networks, `results` and `robustness` the checks. Oracles: the tests.
"""
