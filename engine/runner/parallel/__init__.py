"""Tensor parallelism: one process a rank. Rank 0 is the engine's own process, with scheduler, sampler and sockets.

It starts the others (`process`), which load their part of the model side by side (`rank`, `follower`); then each step
is sent to them once (`step_bytes`) over a socket that rank 0 holds the other end of: they sleep on it between steps,
and when rank 0 is gone they end. Inside a step they meet in sums and gathers of torch.distributed (`group`).
"""
