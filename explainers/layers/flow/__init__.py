"""One forward pass followed operation by operation: the meaning of every tensor's axes, and the graph of the pass."""
