"""How exact the number of huge pages is."""
