"""Curves from snapshots of the pool: observations, rates of visits, and the law of the clock."""
