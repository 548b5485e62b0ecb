"""A page on which programs are looked at, and changed, with the mouse: `sonde view` and `sonde.view`.

`operations.py` lists what the page may ask; `runs.py` runs the program and remembers; `changes.py` makes the changes;
`looking.py` and `experiments.py` answer; `server.py` and `static/` are the page.
"""
