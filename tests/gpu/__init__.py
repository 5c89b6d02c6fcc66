"""``make gpu-check``: everything that only a GPU can show, in one table and in less than ten minutes.

Needs torch (a CUDA build), triton and numpy, nothing else of this project's requirements, and no weights: models have
the shapes of real ones and random values. Speeds are held against ceilings measured in the same run on the same card.
"""
