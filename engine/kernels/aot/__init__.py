"""Compiles every kernel for GPUs that are not here: ``python -m engine.kernels.aot [--arch 80 89 90 100]``.

The ops themselves are run, on tensors without memory and at real models' shapes (`cases`); what they would launch is
recorded and compiled (`kernel`), so that what is checked is what would run. That an op gets through at all also shows
that it never waits for a value from the device. A chip's compile fails the check by an error, by registers that
spill beyond `MAX_SPILLS`, by more shared memory than the chip has, or by a product without matrix instructions.
"""

MAX_SPILLS = 4
"""Loads and stores of spilled registers that are tolerated in one kernel."""
