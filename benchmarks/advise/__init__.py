"""The size advised, and what rules of thumb say, measured."""
