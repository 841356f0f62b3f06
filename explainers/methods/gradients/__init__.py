"""Methods of the input's gradient: plain, averaged over noise, along paths, summed over regions and biases."""
