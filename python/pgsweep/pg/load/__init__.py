"""What a load does to a server: its table's catalog, COPY, the journal, locks, and rows that are refused."""
