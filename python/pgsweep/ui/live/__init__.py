"""The live screen of `pgsweep top`."""
