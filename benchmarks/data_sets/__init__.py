"""Runs over whole data sets: their speed beside forward passes alone, and their memory."""
