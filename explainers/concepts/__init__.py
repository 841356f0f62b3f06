"""Units and concepts: what the channels of a layer respond to, with names that are tested."""
