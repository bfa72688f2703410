"""The embedded Runtime: a true peer of the host, for development and tests. It imports the contract alone."""
