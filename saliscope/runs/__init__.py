"""Datasets: explain every image of a folder, list, tar or Hugging Face dataset, and write the results as Parquet.

`sources` list images; `run` decodes and explains them on one machine, `ray_engine` on several; `report` writes an HTML
report. This package does not depend on the page. Maps are computed by `explainers`, networks come from `saliscope.zoo`.
"""
