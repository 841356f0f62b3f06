"""The structure of a network for a diagram: its main line, blocks in running order, and the skip connections.

The structure is derived from the dataflow of one forward pass, not from module names.
"""
