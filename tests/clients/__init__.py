"""Real clients behind the egress proxy."""
