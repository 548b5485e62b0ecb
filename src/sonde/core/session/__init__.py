"""One run: the state of the thread, what is restored when it ends, and the programs that are kept."""
