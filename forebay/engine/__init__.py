"""Tokens to arrays: schedule, pack, run, answer."""
