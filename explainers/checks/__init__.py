"""`check_explainer`: holds any method against the contract that all of ours keep, one named check a promise.

`context` is what a check gets, `fixtures` its networks, `results` and `robustness` the checks. Oracles: the tests.
"""
