"""What tracing costs a busy server: see README.md here."""
