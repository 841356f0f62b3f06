"""The arithmetic behind one number of a network: the products, the bias, and the operations up to a layer's output.

`recording` records the operations of one forward pass and follows values through those that only move them, `sums` has
the operations that end a trace (convolutions, matrix products, means) and those in between, and `trace` the functions
that users call.
"""
