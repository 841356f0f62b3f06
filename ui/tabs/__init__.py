"""The page's tabs, one file each, the column beside them, and the components they are built from."""
