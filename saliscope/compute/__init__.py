"""Requests and their answers, independent of Gradio: models, network calls, jobs and messages."""
