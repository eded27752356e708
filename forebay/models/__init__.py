"""Architectures: from flat batches to hidden states."""
