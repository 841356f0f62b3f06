"""The list of methods, and the guide to a map."""
