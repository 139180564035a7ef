"""A full count, cold and warm, of a table that fits and of one that does not."""
