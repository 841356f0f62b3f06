"""Cheap checks in the first call of a network, which decide whether it needs the guard (`unusual`)."""
