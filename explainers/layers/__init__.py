"""A network's layers: the pass that traces them (`profile`), layouts, the `default_layer`, receptive fields.

All code specific to a family of networks is here. See `hooks` for hooks on layers and `call` for running them.
"""
