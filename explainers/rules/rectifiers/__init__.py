"""Rules for ReLUs, and the ReLUs that are written as selections."""
