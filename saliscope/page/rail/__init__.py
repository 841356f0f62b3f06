"""The network diagram, in which the user selects a layer."""
