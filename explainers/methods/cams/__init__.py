"""Class-activation maps: one forward and one backward pass down to a layer, and what few of them need besides."""
