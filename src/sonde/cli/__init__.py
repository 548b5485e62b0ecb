"""The command line: `sonde report`, `sites`, `nonfinite`, `compare`, `demo`. One file a command.

It needs click, from the extra `cli`; nothing else in Sonde imports this package. `entry.main` is what the installed
script calls; `python -m sonde.cli` does the same.
"""
