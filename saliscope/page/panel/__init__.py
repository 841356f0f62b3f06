"""The left column with the image and the settings."""
