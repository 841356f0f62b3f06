"""Tests of a public page: hostile files (hostile), attacks (attack), many users (load) and hours of use (soak)."""
