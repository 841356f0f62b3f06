"""What stands between the page and strangers: Gradio's settings, the guard, uploads, the endpoints of the API."""
