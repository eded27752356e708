"""Building blocks of models: flat batches, linear layers, attention."""
