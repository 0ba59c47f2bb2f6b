"""The two errors that reach a user: one line that names the thing, what was expected, the fix."""


class SplitbitError(Exception):
    """Something could not be done. The command line prints the message and exits with 1."""

    exit_code = 1


class UsageError(SplitbitError):
    """The request itself is wrong (a flag, a key, a name). The command line exits with 2."""

    exit_code = 2
