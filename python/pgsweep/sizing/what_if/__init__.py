"""Predictions for another load or another memory: the sentences, and how they change the evidence."""
