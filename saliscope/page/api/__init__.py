"""The API tab, which shows the settings as code."""
