"""The command line: one file a verb. It only calls the Python API and says what came of it."""
