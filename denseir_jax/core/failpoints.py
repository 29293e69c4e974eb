"""Named places where a test can kill the process, to prove that what is on disk survives.

``DENSEIR_FAILPOINT=name:3`` sends SIGKILL to this process the third time that ``reach("name")`` is called.
"""

import os
import signal
from collections import Counter

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Do nothing, or die here by SIGKILL if the environment says so."""
    wanted = os.environ.get("DENSEIR_FAILPOINT")
    if not wanted:
        return
    place, _, count = wanted.partition(":")
    if place != name:
        return
    _reached[name] += 1
    if _reached[name] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
