"""The primitives, one subject a file: eager calls and generation are made of them."""
