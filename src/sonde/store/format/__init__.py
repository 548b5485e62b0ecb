"""The files of a store: manifest, progress, arrays, checksums, and the folder or bucket that holds them."""
