"""The network rail, a drawing of the network for layer selection."""
