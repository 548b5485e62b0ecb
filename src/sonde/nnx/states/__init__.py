"""States: nested mappings from the names in a model to its Variables, and the filters that choose among them."""
