"""What is taken from the hidden states, and what is made of it."""
