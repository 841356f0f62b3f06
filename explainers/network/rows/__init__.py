"""Networks whose rows depend on each other or on random numbers: one row per pass, with fixed generators."""
