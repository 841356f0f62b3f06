"""A network as a drawing shows it: its main line, blocks in running order, and the skip connections around them.

All of it follows from the dataflow of one forward pass; names decide nothing.
"""
