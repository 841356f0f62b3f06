"""What is kept and shared: the address that holds the state, figures, and bundles that can be recomputed."""
