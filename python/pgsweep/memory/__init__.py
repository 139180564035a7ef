"""What does the server's memory cost the host? Processes, budget, kernel settings, huge pages."""
