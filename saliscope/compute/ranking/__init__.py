"""Ranking of all supported methods for one request."""
