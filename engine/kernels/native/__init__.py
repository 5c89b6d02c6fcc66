"""The C++ library behind the CPU ops: sources, how they are built, and the ctypes binding.

`build` compiles one shared object for each instruction set; `library` loads the best one for this CPU and calls it;
`packing` turns weights into the library's layout (at bake or at load). The bindings of the ops are in
``engine/kernels/<op>/cpu.py``.
"""
