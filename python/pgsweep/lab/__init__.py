"""Does it hold here? Published experiments run again, and grids of settings of your own."""
