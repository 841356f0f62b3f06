"""Copies of a network that compute the same scores in less time; methods with many variants of one image use them.

`fused_copy` makes the copy: batch norm is fused into the convolutions and memory is ordered channels last. `compiled`
runs it through `torch.compile` if the caller requests that. Each call first compares the copy's scores of the unchanged
images with the network's, and runs the network itself if they differ.
"""
