"""The network rail: the network as a thin drawing, input to output, in which a layer is chosen."""
