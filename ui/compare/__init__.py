"""The tab that sets up to four maps of one photograph beside one another."""
