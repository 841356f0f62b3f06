"""What happens without a part of the image."""
