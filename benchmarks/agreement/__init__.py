"""How often the simulated pool and a server agree, access by access."""
