"""Concepts of a layer for one request: their maps and effects, and the network with one of them scaled."""
