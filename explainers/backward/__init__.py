"""Modified backward passes: ReLU rules, LRP, DeepLIFT, for one call in the calling thread.

`operations` sees every torch operation; LRP and DeepLIFT have a file of rules and one that applies them. Plain
gradients: `passes`.
"""
