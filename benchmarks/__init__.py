"""Measurements against other libraries; ``forebay bench`` measures Forebay alone."""
