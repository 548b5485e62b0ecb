"""The folder that `sonde check-move` puts first on the path of the processes that it starts."""
