"""What the guard checks before a request reaches Gradio: hosts, bodies, visitors, and the folder of uploads."""
