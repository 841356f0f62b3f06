"""The forward and backward passes that all methods share: `run`, `at_layer`, `attention`; the `loop` of slow methods.

No formula of a paper is here (`methods`), and no hook is registered (`hooks`).
"""
