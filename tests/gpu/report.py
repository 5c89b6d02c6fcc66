"""The one table."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.gpu.timing import Ceilings

HEAD = f"{'what':44} {'time':>10} {'rate':>12} {'of ceiling':>10} {'torch':>10} {'verdict':>8}"


@dataclass(slots=True)
class Report:
    """Prints rows as they come; remembers what failed."""

    ceilings: Ceilings
    failures: list[str] = field(default_factory=list)

    def start(self) -> None:
        """The heading."""
        print(f"ceilings: copy {self.ceilings.copy_bytes / 1e12:.2f} TB/s, ", end="")
        print(f"bf16 matmul {self.ceilings.matmul_flops / 1e12:.0f} TFLOP/s")
        print(HEAD, flush=True)

    def add(
        self,
        what: str,
        seconds: float,
        *,
        moved: float = 0.0,
        flops: float = 0.0,
        torch_seconds: float | None = None,
        target: float | None = None,
    ) -> None:
        """One timing: bytes moved or operations done, and the share of the ceiling that is asked for."""
        by_bytes = moved / self.ceilings.copy_bytes >= flops / self.ceilings.matmul_flops
        rate = f"{moved / seconds / 1e9:7.0f} GB/s" if by_bytes else f"{flops / seconds / 1e12:6.1f} TF/s"
        floor = max(moved / self.ceilings.copy_bytes, flops / self.ceilings.matmul_flops)
        share = floor / seconds
        beside = "" if torch_seconds is None else f"{torch_seconds * 1e6:8.1f}us"
        self._print(what, f"{seconds * 1e6:8.1f}us", rate, f"{100 * share:8.0f} %", beside, share, target)

    def add_step(self, what: str, seconds: float, tokens: int, floor_s: float, target: float | None) -> None:
        """A step of a whole model: tokens that it yields, and the time that the ceilings allow."""
        share = floor_s / seconds
        rate = f"{tokens / seconds:7.0f} tok/s"
        self._print(what, f"{seconds * 1e3:8.2f}ms", rate, f"{100 * share:8.0f} %", "", share, target)

    def add_share(self, what: str, seconds: float, share: float, most: float) -> None:
        """An overhead as a share of a step, of which there may be at most so much."""
        self._print(what, f"{seconds * 1e6:8.1f}us", "", f"{100 * share:8.1f} %", "", most, share)

    def fail(self, what: str, why: str) -> None:
        """Something that is wrong, or broke."""
        self.failures.append(what)
        print(f"{what:44} FAILED: {why}", flush=True)

    def _print(
        self, what: str, time: str, rate: str, ceiling: str, beside: str, share: float, target: float | None
    ) -> None:
        verdict = "" if target is None else "ok" if share >= target else "short"
        print(f"{what:44} {time:>10} {rate:>12} {ceiling:>10} {beside:>10} {verdict:>8}", flush=True)
