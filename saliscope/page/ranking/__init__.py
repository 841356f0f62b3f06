"""The ranking: a table of all supported methods ordered by faithfulness metrics."""
