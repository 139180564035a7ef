"""Evidence: recorded from a server, stored on disk in open formats, read back."""
