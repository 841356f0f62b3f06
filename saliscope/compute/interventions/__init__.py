"""Changes of selected channels, for one request: the classes and maps of the changed network."""
