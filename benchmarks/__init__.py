"""Our methods timed beside the peers that are installed; may import them and NumPy, and nothing imports this."""
