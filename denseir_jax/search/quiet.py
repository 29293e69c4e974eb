"""Keeping a C++ library's log lines off standard error. They come from below Python, so the file descriptor is turned away."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_STANDARD_ERROR = 2
# absl's lines of level I and W, with the note that it puts before the first of them.
_LOG = re.compile(rb"(?:[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] |WARNING: All log messages before absl::InitializeLog)")


@contextlib.contextmanager
def quiet_library() -> Iterator[None]:
    """Hold standard error back; at the end drop absl's log lines and pass everything else on. On failure pass all of it on.

    The descriptor belongs to the whole process: what other threads write meanwhile comes out at the end, none of it is lost.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        try:
            kept = os.dup(_STANDARD_ERROR)
        except OSError:  # there is no standard error
            yield
            return
        stack.callback(os.close, kept)
        held = stack.enter_context(tempfile.TemporaryFile())
        os.dup2(held.fileno(), _STANDARD_ERROR)
        failed = True
        try:
            yield
            failed = False
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(kept, _STANDARD_ERROR)
            held.seek(0)
            for line in held:
                if failed or not _LOG.match(line):
                    os.write(kept, line)
