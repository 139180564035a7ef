"""Files: found, decompressed, cut into records, and their fields matched with columns."""
