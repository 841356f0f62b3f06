"""The predictions with small maps of their classes, the planes of a map, and the crops that the browser has."""
