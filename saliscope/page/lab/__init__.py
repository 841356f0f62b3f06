"""The Gradient lab view, which shows the effect of hooks on gradients."""
