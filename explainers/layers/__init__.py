"""A network's layers: calls and layouts (`profile`, `layout`), the `default_layer`, `lookup` by name, receptive fields.

All code specific to a family of networks is here. See `hooks` for hooks on layers and `passes` for running them.
"""
