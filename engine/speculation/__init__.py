"""Guesses of what a request's next tokens will be, and whether checking them pays. No torch.

A draft is computed and sampled in the step in which its first token would have been; sampling noise belongs to output
positions and rows don't depend on each other, so what comes out is bit for bit what comes out without drafts. Where
drafts fit into a step is the scheduler's business (`engine.scheduler.drafts`), checking them the runner's.
"""
