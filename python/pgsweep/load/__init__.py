"""How do I load data fast, and without losing an index? Plan, copy, make again, resume, roll back."""
