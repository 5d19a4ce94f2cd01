"""The commands: options, graph wiring, the driver's loop and reports. Nothing here is pickled.

Training: `train` (the command), `algorithm` (`Algorithm`, the same from Python), `runners`,
`options`, `newest_policy` (acting and evaluation).
Reports: `report/` (the terminal, TensorBoard).
"""
