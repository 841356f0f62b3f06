"""Server setup: Gradio settings, the request guard and the API endpoints."""
