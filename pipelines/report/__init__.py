"""What a person sees of a run.

Training: `terminal` (live bar, plain lines or silence), `live` (the bar, drawn with rich),
`progress` (the numbers that both show), `tensorboard` (event files in the run directory).
"""
