"""Attacks on a running page."""
