"""Reading a store: rows with verified checksums, random minibatches, and a check of everything."""
