"""Descriptions of networks: shapes, parameters, multiply-adds, memory, time and receptive fields of all layers."""
