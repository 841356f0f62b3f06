"""The page. Gradio reads these settings when it is imported: no analytics, and no server in front of ours."""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # also switches off the Hub's telemetry
os.environ.setdefault("GRADIO_SSR_MODE", "False")
# After every event, Gradio summarizes the times of the last 10,000 events with pandas for a page that we do not serve.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**12))
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")
