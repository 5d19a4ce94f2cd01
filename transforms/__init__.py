"""Beam transforms: everything that distributes the plain functions of `policies` over a pipeline.

Data: `coders` (record batches between stages).
Training: `rollouts`, `learner`, `publish`, `metrics`.
"""
