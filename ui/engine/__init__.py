"""A question (`request`) and its answer (`engine`), without Gradio: models, network calls, jobs, the wire format."""
