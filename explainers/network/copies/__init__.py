"""Private copies of a network in evaluation mode, and the detection of copies that run the original."""
