"""The tab that compares two models: the second part of the comparison."""
