"""A page about runs, made from what their folders hold: figures, then curves, then HTML."""
