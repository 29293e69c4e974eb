"""The ways a stage ends early. Each has one exit code and one clear line."""

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75


class InputError(Exception):
    """Bad data, a missing file or an impossible request: the user can mend it. Exit code 2, one line, no traceback.

    Say what is wrong, where (``file:line`` for data), and what was expected.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class ConfigError(InputError):
    """A config key or value that cannot be used. Exit code 2."""


class Stopped(Exception):
    """A signal asked the stage to stop and its state was saved. Exit code 75."""
