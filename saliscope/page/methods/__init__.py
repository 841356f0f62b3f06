"""The method picker and the map guide."""
