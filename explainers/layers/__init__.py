"""A network's layers: their calls and layouts (`profile`, `layout`), the default layer (`lookup`), receptive fields.

Everything that knows a family of networks is here. Hooks on a layer: `hooks`; what runs through it: `passes`.
"""
