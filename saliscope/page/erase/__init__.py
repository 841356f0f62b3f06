"""The erase view: the same question about an image with an erased region or another change."""
