"""Building blocks for plugin authors."""
