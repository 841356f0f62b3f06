"""The tools for agents, over the Model Context Protocol at /mcp (`saliscope serve --mcp`)."""
