"""What statements leave in each cache."""
