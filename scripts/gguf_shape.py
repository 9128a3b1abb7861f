"""Sizes of a GGUF model from its header alone: bytes of its weights and products of a token. Standard library only."""

import struct

# type number: (elements of a block, bytes of a block)
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          12: (256, 144), 13: (256, 176), 14: (256, 210)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Shape:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.f = f
            if f.read(4) != b"GGUF":
                raise SystemExit(f"gguf_shape: {path}: not a GGUF file")
            _, n_tensor, n_key = self.read("IQQ")
            self.keys = {}
            for _ in range(n_key):
                k = self.text()
                self.keys[k] = self.value(self.read("I")[0])
            tensors = {}
            for _ in range(n_tensor):
                name = self.text()
                dims = self.read("Q" * self.read("I")[0])
                kind, _ = self.read("IQ")
                tensors[name] = (dims, kind)
        self.weight_bytes = 0   # read by one token: the embedding only if it is the head too
        self.linear_macs = 0    # of a prompt's token: all matrices but embedding and head
        tied = "output.weight" not in tensors
        for name, (dims, kind) in tensors.items():
            n = 1
            for d in dims:
                n *= d
            per, size = BLOCKS[kind]
            if name != "token_embd.weight" or tied:
                self.weight_bytes += n // per * size
            if len(dims) == 2 and name not in ("token_embd.weight", "output.weight"):
                self.linear_macs += n
        arch = self.keys["general.architecture"]
        key = lambda k, d=None: self.keys.get(f"{arch}.{k}", d)
        self.n_layer = key("block_count")
        self.n_kv = key("attention.head_count_kv", key("attention.head_count"))
        self.head_dim = key("attention.key_length", key("embedding_length") // key("attention.head_count"))

    def kv_bytes(self, kind):
        """Of a token; int8 carries a float32 scale for each head's K and V."""
        head = self.head_dim + 4 if kind == "int8" else 2 * self.head_dim
        return self.n_layer * self.n_kv * 2 * head

    def read(self, kinds):
        kinds = "<" + kinds
        return struct.unpack(kinds, self.f.read(struct.calcsize(kinds)))

    def text(self):
        return self.f.read(self.read("Q")[0]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            of, n = self.read("IQ")
            if of in (8, 9):
                return [self.value(of) for _ in range(n)]
            return self.read(SCALARS[of] * n)
        return self.read(SCALARS[kind])[0]
