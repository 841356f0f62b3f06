"""Structure and gradient norms of a network for the network diagram."""
