"""Scripts, styles and texts that several views use: address, status, stored images, glossary."""
