"""What is left when a command is killed at any moment."""
