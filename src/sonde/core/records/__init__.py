"""From recorded arrays to `Records`.

`branch_merge` and `gradient_pairing` turn items into calls, `build` turns calls into records, `layout` is the part of a
record that is the same for every run of a compiled program. `record` is what users hold; `display` draws it.
"""
