"""The page's tabs, one file each (`tab.py` says what a tab is), the left column, and the component classes."""
