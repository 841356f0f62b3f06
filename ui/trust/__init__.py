"""The trust strip: how far the map that is shown can be believed, beside the controls, the class and the weights."""
