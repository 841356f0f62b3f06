"""The ways through a network that all methods share: `run`, `at_layer`, `attention`, and the `loop` of the slow ones.

No formula of a paper is here (`methods`), and no hook is registered (`hooks`).
"""
