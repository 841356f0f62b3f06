"""Whole data sets: every picture of a folder, list, tar or Hugging Face data set explained, into Parquet shards.

sources list pictures; a run decodes and explains them, on one machine or through Ray; `report/` shows what it found.
Nothing of the page is here, and no formula: maps are `explainers`', networks are `models`'.
"""
