"""The Explain view, which shows a map over the image, and the stored answer for the first example."""
