"""Running a program with a handler at its sites.

`trace` is what a captured function runs under. `handler` decides what happens at a site; `recording` is the handler of
`capture`. `rules` carry sites through loops, branches and calls; `rewrite` does the part that all rules share.
"""
