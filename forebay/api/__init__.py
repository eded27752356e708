"""The front door in Python."""
