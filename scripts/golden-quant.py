#!/usr/bin/env python3
"""Writes tests/golden/quant.txt: random rows of every weight type and what the `gguf` package makes of them.

usage: golden-quant.py > tests/golden/quant.txt     (needs: pip install gguf numpy)
"""
import importlib.metadata

import gguf
import numpy as np

SEED = 20240607
ROWS = 3
# Where the f16 scales of a block lie; all other bytes of a block may be anything.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
FLOATS = ["F32", "F16", "BF16"]


def scale(rng):
    """A finite f16: mostly of usual size, now and then zero, subnormal or great."""
    kind = rng.integers(8)
    if kind == 0:
        return np.float16(0)
    if kind == 1:
        return np.float16(rng.integers(1, 1024) * 2.0**-24)
    if kind == 2:
        return np.float16(rng.uniform(-100, 100))
    return np.float16(rng.uniform(-0.1, 0.1))


def quant_row(rng, name, cols):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (cols // block, size), dtype=np.uint8)
    for b in blocks:
        for at in SCALES[name]:
            b[at : at + 2] = np.frombuffer(scale(rng).tobytes(), dtype=np.uint8)
    return blocks.reshape(-1)


def float_row(rng, name, cols):
    x = (rng.standard_normal(cols) * 10.0 ** rng.uniform(-6, 2, cols)).astype(np.float32)
    if name == "F32":
        return x.view(np.uint8)
    if name == "F16":
        return x.astype(np.float16).view(np.uint8)
    return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def main():
    rng = np.random.default_rng(SEED)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("gguf", "numpy"))
    print(f"# made by scripts/golden-quant.py with {versions}, seed {SEED}")
    print("# TYPE COLUMNS, then for each row: the bytes as GGUF stores them, the f32 values of gguf.quants.dequantize (bits)")
    for name in FLOATS + list(SCALES):
        # An odd number of columns, an odd number of 32-column blocks, two blocks of 256.
        cols = 37 if name in FLOATS else 512 if name.endswith("K") else 96
        for _ in range(ROWS):
            row = float_row(rng, name, cols) if name in FLOATS else quant_row(rng, name, cols)
            if name == "F16":
                value = row.view(np.float16).astype(np.float32)
            else:
                value = gguf.quants.dequantize(row, gguf.GGMLQuantizationType[name])
            bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32).reshape(-1)
            print(name, cols)
            print(row.tobytes().hex())
            print("".join(f"{b:08x}" for b in bits))


main()
