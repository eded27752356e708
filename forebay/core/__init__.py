"""What is said: plain data, without torch and without I/O."""
