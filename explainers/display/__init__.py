"""Results as HTML for notebooks and as pages: maps with controls, tables and charts, without a server."""
