"""The Numba backend's package. It offers nothing yet."""
