"""Private servers under workloads, and the measuring of the truth on them."""
