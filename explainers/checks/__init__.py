"""`check_explainer`: test any method against the contract of the library, in small named checks.

`context` is the argument of every check, `fixtures` has the networks, `results` and `robustness` have the checks.
Numerical reference implementations are in the tests.
"""
