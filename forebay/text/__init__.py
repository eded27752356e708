"""Texts to tokens."""
