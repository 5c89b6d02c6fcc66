"""When has a program failed for good? Judges the states that supervisord reports, one look after another.

supervisord gives up on a program that ends again and again within its first seconds (FATAL). On top of that the box
ends when a program says by its exit status that trying again is no use, when one ends by itself before the box was
ever ready (what fails at the first try fails at the next), and when one is restarted again and again without ever
becoming useful. Somebody who kills a program as it starts must try longer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from appliance.supervisor.control import ProgramState

MAX_USELESS_RESTARTS = 5
MAX_USELESS_KILLS = 30  # by SIGKILL, which is seldom the program's own fault
_ENDED = {"BACKOFF", "EXITED"}
CONFIG_ERROR_STATUS = 2  # of `breadbox engine`: the configuration is wrong


@dataclass
class _History:
    pid: int = 0
    is_useful: bool = False  # this pid, as far as is known
    useless_restarts: int = 0
    useless_kills: int = 0
    was_killed: bool = False  # the last time that it ended
    exit_status: int = 0  # of its last end by itself


@dataclass
class Watch:
    """Remembers what it saw."""

    was_ready: bool = False
    restarts: int = 0
    _histories: dict[str, _History] = field(default_factory=dict)

    def look(self, programs: Collection[ProgramState], useful_pids: Collection[int]) -> ProgramState | None:
        """The program that has failed for good, if any. `useful_pids` are those of engines that are, or were, ready."""
        for program in programs:
            self._note(program, useful_pids)
            if self._has_failed(program):
                return program
            # One that was started again at once is never seen as ended.
            if not self.was_ready and (status := self._histories[program.name].exit_status) > 0:
                return replace(program, exit_status=status)
        return None

    def note_kill(self, name: str) -> None:
        """supervisord tells that a SIGKILL ended the program."""
        self._histories.setdefault(name, _History()).was_killed = True

    def note_exit(self, name: str, exit_status: int) -> None:
        """supervisord tells that the program ended by itself."""
        self._histories.setdefault(name, _History()).exit_status = exit_status

    def _note(self, program: ProgramState, useful_pids: Collection[int]) -> None:
        history = self._histories.setdefault(program.name, _History())
        history.is_useful |= history.pid in useful_pids
        if program.pid and history.pid and program.pid != history.pid:
            self.restarts += 1
            self._count(history)
        history.pid = program.pid or history.pid
        # Programs without a readiness of their own are useful once supervisord takes them for started.
        is_started = not program.name.startswith("engine-") and program.state == "RUNNING"
        history.is_useful |= is_started or program.pid in useful_pids

    @staticmethod
    def _count(history: _History) -> None:
        if history.is_useful:
            history.useless_restarts = history.useless_kills = 0
        elif history.was_killed:
            history.useless_kills += 1
        else:
            history.useless_restarts += 1
        history.is_useful = history.was_killed = False

    def _has_failed(self, program: ProgramState) -> bool:
        history = self._histories[program.name]
        if program.state == "FATAL" or history.useless_restarts > MAX_USELESS_RESTARTS:
            return True
        if history.useless_kills > MAX_USELESS_KILLS:
            return True
        if program.state not in _ENDED:
            return False
        if program.name.startswith("engine-") and program.exit_status == CONFIG_ERROR_STATUS:
            return True
        return not self.was_ready and program.exit_status > 0
