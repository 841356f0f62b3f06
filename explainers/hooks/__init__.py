"""PyTorch's hooks made safe: `capture` a layer's output or input, `edit` outputs, inputs and gradients, by layer name.

The only files that register hooks on modules are here (`calls`). How a layer's tensor lies in space: `layers`.
"""
