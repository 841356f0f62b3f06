"""Server part of the bundle download."""
