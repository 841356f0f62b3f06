"""Automatic batch sizes, and the memory that limits them."""
