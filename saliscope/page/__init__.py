"""The web page: Gradio components, event handlers and the server."""
