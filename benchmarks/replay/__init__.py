"""What a replay costs, beside another simulator and for a whole curve."""
