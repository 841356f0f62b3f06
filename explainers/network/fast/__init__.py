"""Faster private copies of a network, for many variants of one image."""
