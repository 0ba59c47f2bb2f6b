"""The configuration of a training so small that a test can afford several."""

TINY = {
    "preset": "tiny-llama",
    "model": {"layers": 1, "heads": 2, "kv_heads": 1, "width": 32, "hidden": 64, "context": 32},
    "tokenizer": {"kind": "byte"},
    "data": {},
    "train": {"steps": 8, "batch_size": 2, "seq_len": 16, "eval_every": 4, "seed": 3},
    "optimizer": {"lr": 1e-2},
    "scheduler": {"warmup_steps": 2},
    "checkpoint": {"save_every": 2},
    "quantize": {},
    "sample": {"max_tokens": 8},
    "compute": {"backend": "numpy", "threads": 1},
}
