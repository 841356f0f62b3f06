"""The state of a network's modules, to notice that it changed between calls."""
