"""How do I load data fast, and without losing an index? Plan, copy, make again, resume, roll back."""

import os

# Arrow's own allocators keep some 30 MB of what was freed. It reads this when it is imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
