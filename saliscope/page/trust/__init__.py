"""The faithfulness check in the overlay tab."""
