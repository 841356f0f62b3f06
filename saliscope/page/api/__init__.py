"""The API view, which shows the settings as code."""
