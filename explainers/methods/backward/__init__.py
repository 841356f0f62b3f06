"""Methods with a backward pass of their own: guided backpropagation, deconvnet, excitation, LRP, DeepLIFT."""
