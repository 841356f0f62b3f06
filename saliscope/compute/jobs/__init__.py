"""Jobs of users: tokens, time limits and the queue for the network."""
