"""How one value of an open channel is computed."""
