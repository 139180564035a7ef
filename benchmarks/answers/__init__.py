"""How long answers take, from evidence of the usual sizes."""
