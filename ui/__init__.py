"""The page: Gradio components, handlers and the engine behind them."""
