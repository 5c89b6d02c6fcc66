"""How many KV blocks there are: what the configuration says, else a share of the memory that is free."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ConfigError

DEFAULT_SHARE = 4  # a quarter of what is free
DEFAULT_MAX_BYTES = 4 << 30
_CGROUPS = (  # limit, use, and what the names of memory.stat begin with: version 2 and version 1
    ("memory.max", "memory.current", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_"),
)


def count_blocks(config: EngineConfig, block_bytes: int, max_model_len: int, measured_bytes: int | None = None) -> int:
    """Blocks to allocate. ConfigError where not even one request of max_model_len tokens fits.

    `measured_bytes` are what a GPU has left for them; on a CPU a share of free memory is taken, by all ranks together.
    """
    needed = -(-max_model_len // config.block_size)
    if config.num_gpu_blocks_override is not None:
        return _checked(config.num_gpu_blocks_override, needed, config, f"num_gpu_blocks_override to at least {needed}")
    enough = f"kv_cache_memory_bytes to at least {needed * block_bytes}"
    if config.kv_cache_memory_bytes is not None:
        return _checked(config.kv_cache_memory_bytes // block_bytes, needed, config, enough)
    if measured_bytes is not None:
        enough = f"gpu_memory_utilization above {config.gpu_memory_utilization}"
        return _checked(measured_bytes // block_bytes, needed, config, enough)
    default_bytes = min(free_memory_bytes() // DEFAULT_SHARE, DEFAULT_MAX_BYTES) // config.tensor_parallel_size
    return _checked(min(default_bytes // block_bytes, needed * config.max_num_seqs), needed, config, enough)


def has_fixed_size(config: EngineConfig) -> bool:
    """Whether the configuration says how big the cache is."""
    return config.num_gpu_blocks_override is not None or config.kv_cache_memory_bytes is not None


def _checked(blocks: int, needed: int, config: EngineConfig, remedy: str) -> int:
    if blocks < needed:
        held = blocks * config.block_size
        raise ConfigError(
            f"the KV cache holds {held} tokens, fewer than one request of max_model_len may have: "
            f"set {remedy} or max_model_len to at most {held}"
        )
    return blocks


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be had without swapping: the machine's, or what the container's limit leaves of it."""
    free = _meminfo_available(meminfo)
    for limit_file, used_file, prefix in _CGROUPS:
        limit, used = _read_number(cgroup / limit_file), _read_number(cgroup / used_file)
        if limit is not None and used is not None:
            cached = _read_cached(cgroup / used_file, prefix)
            free = min(free, max(0, limit - max(0, used - cached)))
    return free


def _read_cached(used_file: Path, prefix: str) -> int:
    """What the kernel keeps of files and gives up first, as in MemAvailable: a second start finds the first one's."""
    try:
        lines = used_file.with_name("memory.stat").read_text(encoding="ascii").splitlines()
        numbers = {name: int(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return 0
    return sum(numbers.get(f"{prefix}{name}", 0) for name in ("inactive_file", "active_file"))


def _meminfo_available(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(f"{path} has no MemAvailable: set kv_cache_memory_bytes")


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such cgroup, or "max": no limit
        return None
