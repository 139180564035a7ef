"""Sessions: where they go, what they may do, how they fail, and what comes back from them."""
