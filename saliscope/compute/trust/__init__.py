"""Faithfulness check of a map against controls, another class and randomized weights."""
