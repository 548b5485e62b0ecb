"""Modules and other objects with attributes: their classes, calls, captures, views and displays."""
