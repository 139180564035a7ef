"""Records shown: tables, charts, JSON, CSV, HTML. Sees records only."""
