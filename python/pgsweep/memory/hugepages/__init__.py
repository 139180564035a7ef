"""Huge pages: how many the server asks for, whether it gets them, how to reserve them."""
