"""Whatever a command of pgsweep does, nothing else notices."""
