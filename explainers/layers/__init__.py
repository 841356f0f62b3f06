"""A network's layers: calls and layouts (`profile`, `layout`), the `default_layer`, `lookup` by name, receptive fields.

Everything that knows a family of networks is here. Hooks on a layer: `hooks`; what runs through it: `passes`.
"""
