"""Images: decoding of untrusted files, images with N bands (TIFF and NPY), metadata removal, and examples."""
