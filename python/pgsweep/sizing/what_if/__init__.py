"""What would be if the load or the memory were another one: sentences, and what they do to evidence."""
