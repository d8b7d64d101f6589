"""From published files to loaded modules."""
