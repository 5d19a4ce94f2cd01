from setuptools import setup

setup()  # Everything is in pyproject.toml; this file is what --setup_file=./setup.py names.
