"""A dense matrix product whose order of sums never depends on the number of rows: batch-invariant mode's."""
