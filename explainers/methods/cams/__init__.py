"""Class-activation maps: weighted sums and components of a layer's activations, and their parts."""
