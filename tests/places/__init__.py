"""Where people run PostgreSQL, as real servers: what the kernel and PostgreSQL do is what is expected."""
