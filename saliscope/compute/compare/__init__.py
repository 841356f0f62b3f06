"""Requests of the comparison panels."""
