"""Beam transforms: everything that distributes the plain functions of `policies` over a pipeline.

Data: `coders` (record batches between stages).
Training: `rounds` (whole jobs), `rollouts`, `learner`, `publish`, `metrics`.
Local runs: `local_worker` (a worker process of the in-process runner).
"""
