"""The command line: `sonde report`, `sites`, `nonfinite`, `compare`, `demo`, ... One file per command.

It needs click, from the extra `cli`; nothing else in Sonde imports this package. The installed script calls
`entry.main`; so does `python -m sonde.cli`.
"""
