"""Where files and modules are joined, once."""
