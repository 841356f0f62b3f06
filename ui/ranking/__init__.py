"""Which method to believe for this picture: a table of all that fit, in the order of the metrics, as results arrive."""
