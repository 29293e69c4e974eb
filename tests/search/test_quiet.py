import os
import subprocess
import sys

import pytest

from denseir_jax.search.quiet import quiet_library

NOTE = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
LOG = b"I0000 00:00:1795984911.720578    2398 partitioner_factory_base.cc:58] Size of sampled dataset: 400\n"


def test_only_log_lines_are_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_library():
        os.write(2, NOTE + LOG + b"of another thread\n" + LOG.replace(b"I0000", b"W0000") + LOG.replace(b"I0000", b"E0000"))
        assert capfd.readouterr().err == ""
    os.write(2, b"after\n")
    assert capfd.readouterr().err == f"of another thread\n{LOG.decode().replace('I0000', 'E0000')}after\n"


def test_on_failure_everything_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no"), quiet_library():
        os.write(2, LOG)
        raise RuntimeError("no")
    assert capfd.readouterr().err == LOG.decode()


def test_without_a_standard_error_nothing_happens() -> None:
    code = "import os; os.close(2)\nfrom denseir_jax.search.quiet import quiet_library\nwith quiet_library(): print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "done\n"
