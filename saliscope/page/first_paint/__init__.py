"""What the browser shows until the page's scripts have started."""
