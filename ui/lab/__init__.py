"""The gradient lab: what hooks do to gradients, in one backward pass (`engine`) and over a training (`training`)."""
