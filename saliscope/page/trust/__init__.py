"""The faithfulness checks below a map."""
