"""Reinforcement learning without Beam: sample batches, environments, policies and learners.

Data: `sample_batch` (the one data model), `spaces`, `arrow_columns`, `batch_validation`.
Acting: `networks`, `numpy_networks`, `distributions`, `policy`.
Environments: `envs`, `vector_envs`, `env_runner`, `env_state`, `watchdog`, `testing`.
Learning: `returns`, `filters`, `schedules`, `random_streams`, `learners/`.
Rounds: `training_round`, `training_run`, `evaluation`, `stopping`, `stages`.
Runs: `config`, `run_directory`, `manifest`, `run_lock`, `retention`, `stored_run`, `round_results`.
"""
