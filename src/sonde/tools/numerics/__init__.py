"""Is something wrong with the numbers? The first NaN, the walk back to any cause, and statistics of every value."""
