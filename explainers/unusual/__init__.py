"""The guard: what makes results right for networks that are not ordinary. It is imported for the first such network."""
