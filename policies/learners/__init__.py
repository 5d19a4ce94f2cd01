"""Learners, one file each, readable top to bottom.

`learner` (the contract and the registry), `ppo`, `adam`, `minibatches` (rows or sequences).
"""
