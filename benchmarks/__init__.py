"""Benchmarks: each prints ratios to a bare loop measured in the same run. Never part of the tests.

`python -m benchmarks.NAME`: sampling, update, overhead, imports, memory, learning, versus_sb3.
"""
