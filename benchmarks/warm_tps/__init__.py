"""Transactions a second, cold and warm, at several sizes of shared_buffers."""
