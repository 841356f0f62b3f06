"""Sentences as targets of networks with a text encoder."""
