"""The Batch tab, which explains uploaded images or a zip archive with the current settings and shows a report.

`saliscope.runs` runs the explanations and writes the report. This package has the tab, its job and the zip reader.
"""
