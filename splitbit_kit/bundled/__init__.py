"""Our own plugins. Each imports `splitbit_kit.api` alone, as a stranger's would."""
