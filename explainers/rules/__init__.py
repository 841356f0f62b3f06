"""Modified backward passes: ReLU rules, LRP and DeepLIFT, limited to one call in the calling thread.

`operations` intercepts every torch operation. LRP and DeepLIFT each have a module of rules and a module that applies
them. Plain gradients are in `call`.
"""
