"""Passes shared by all methods: `forward`, `scoring` and `backward` of one `run`, `at_layer`, `attention`; the `loop`.

The formulas of the methods are in `methods`; hooks are registered in `hooks`.
"""
