"""Owns when the machine had no processor to spare for the programs of a campaign, by the kernel's own account."""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clock import Instant, after, seconds_between, system_clock


@dataclass
class Starvation:
    """When the programs of a fleet waited for a processor too long to be heard in time.

    A lease that ran out then was not taken from somebody who could be heard.
    """

    lease_seconds: float
    spans: list[tuple[Instant, Instant]] = field(default_factory=list)
    _waited: dict[int, int] = field(default_factory=dict)  #: by thread: nanoseconds so far
    _recent: deque[tuple[float, float]] = field(default_factory=deque)  #: when, and how many seconds

    @property
    def seconds(self) -> float:
        return sum(seconds_between(since, until) for since, until in self.spans)

    def covers(self, since: Instant, until: Instant) -> bool:
        return any(begun <= until and since <= ended for begun, ended in self.spans)

    def look(self, pids: Sequence[int]) -> None:
        """The longest wait in each of the processes counts, since a request passes through them one by one."""
        now = time.monotonic()
        self._recent.append((now, sum(self._longest_wait(pid) for pid in pids)))
        while self._recent[0][0] < now - self.lease_seconds:
            self._recent.popleft()
        waited = sum(seconds for _, seconds in self._recent)
        if waited >= self.lease_seconds / 2:  # a renewal that takes longer is too late to count on
            self._add(waited)

    def _add(self, waited: float) -> None:
        until = system_clock()
        since = after(until, -waited)
        while self.spans and self.spans[-1][1] >= since:
            since = min(self.spans.pop()[0], since)
        self.spans.append((since, until))

    def _longest_wait(self, pid: int) -> float:
        longest = 0
        for thread in threads_of(pid):
            with suppress(OSError):
                so_far = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
                longest = max(longest, so_far - self._waited.get(thread, so_far))
                self._waited[thread] = so_far
        return longest / 1e9


def threads_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    return []
