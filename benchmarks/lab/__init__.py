"""What the lab itself costs, and every published experiment run again."""
