"""Runs over data sets: their speed compared with forward passes, and their memory."""
