"""What a server says of itself: settings, relations, buffers, counters, privileges, and its place."""
