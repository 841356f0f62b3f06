"""One call from `explain` to the formula: view of the model, images, target, forward and backward passes, variants.

`current` opens a call, `method` checks it, `run` is what a formula works on, with `scores`, `gradients` and the `loop`
of slow methods. The formulas are in `methods`; hooks are registered in `hooks`.
"""
