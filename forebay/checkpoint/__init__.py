"""What is on disk: finds checkpoints and reads their files; builds no modules."""
