"""Choosing a method and reading its map: the picker, "What am I seeing?", and findings in a visitor's words."""
