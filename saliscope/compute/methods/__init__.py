"""Texts, badges, costs and findings of the methods."""
