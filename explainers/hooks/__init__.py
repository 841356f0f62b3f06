"""Safe PyTorch hooks by layer name: `capture` outputs and inputs of layers, `edit` outputs, inputs and gradients.

Only this package registers hooks on modules (`calls`). See `layers` for the spatial layout of a layer's tensor.
"""
