"""HTTP: the app, its dialects and its process."""
