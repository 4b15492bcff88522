"""Interfaces of other libraries, implemented with Smalti.

`petastorm` has the names and arguments of Petastorm. This package contains only adapters, which turn foreign arguments
into options of the library. Read `petastorm/__init__.py` first.
"""
