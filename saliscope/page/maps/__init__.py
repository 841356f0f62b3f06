"""Maps of the most likely classes and cached maps of the browser."""
