"""Gradio component classes and the wire format of answers."""
