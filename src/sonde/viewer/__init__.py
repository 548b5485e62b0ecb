"""A page on which programs are looked at, and changed, with the mouse: `sonde view` and `sonde.view`.

`operations.py` lists what the page may ask; `runs.py` runs the program and remembers; `changes.py` makes the changes.
The files that answer are named after what they answer: `reading.py`, `sites.py`, `explained.py`, `layers.py`,
`experiments.py`, `graphs.py`, `stored.py`, `training.py`. `server.py` and `static/` are the page.
"""
