"""The variables of a running module: scopes, random keys, filters over collections, and sown values."""
