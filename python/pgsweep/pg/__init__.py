"""All that speaks SQL or runs a PostgreSQL: connections, catalog, queries by version, private clusters."""
