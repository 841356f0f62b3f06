"""Latency of the page in Chromium; see `__main__.py`."""
