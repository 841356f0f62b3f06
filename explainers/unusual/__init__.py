"""The guard: what makes results right for networks that are not ordinary. It is imported when the first one is met."""
