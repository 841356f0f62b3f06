"""Experiments with a network: change a layer, describe all layers, compare two models."""
