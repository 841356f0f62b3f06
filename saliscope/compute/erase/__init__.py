"""The erase view: the same question about an edited image."""
