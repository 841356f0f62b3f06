"""The Compare view, which shows up to four maps side by side."""
