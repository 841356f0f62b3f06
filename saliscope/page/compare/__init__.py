"""The Compare tab, which shows up to four maps side by side."""
