"""Owns the process that is weighed: it listens to one turn, its prompt on standard input, and tells its peak.

It imports what its subject needs, and nothing else.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def main(who: str, work_dir: Path, command: list[str]) -> None:
    prompt = sys.stdin.read()
    if who == "bare":
        from bench import bare_reader

        bare_reader.read(command, prompt, work_dir, os.environ)
    else:
        import holdfast

        ran = holdfast.open().run(prompt, provider="scripted", cwd=str(work_dir))
        assert ran.ok, ran.failure
    print(_peak())


def _peak() -> int:
    """Bytes. Linux counts into ``ru_maxrss`` also what the process was before it became this program."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found.group(1)) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
