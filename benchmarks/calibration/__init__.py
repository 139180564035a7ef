"""How far predictions are off, and how often their intervals hold, on workloads that a generator draws."""
