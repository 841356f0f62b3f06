"""The Gradient lab tab, which shows the effect of hooks on gradients."""
