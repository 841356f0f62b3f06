"""Methods with a custom backward pass: guided backpropagation, deconvnet, excitation backprop, LRP, DeepLIFT."""
