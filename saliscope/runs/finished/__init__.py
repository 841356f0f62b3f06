"""Finished runs: their images and network (`finished_run`), and metrics of their maps (`evaluation`).

Reports are in `saliscope.runs.report`.
"""
