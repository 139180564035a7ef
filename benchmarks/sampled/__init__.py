"""Replays by samples of the pages, beside those of a whole trace."""
