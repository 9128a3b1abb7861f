"""Ids of text by Hugging Face `tokenizers`, built from the vocabulary and merges inside a GGUF file, and chats rendered by
the file's own template with jinja2: the authorities beside which golden files are made. Needs: tokenizers, gguf, jinja2."""

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # token_type of control tokens in GGUF
USER = 4

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def pre_tokenizer(kind):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if kind == "gpt-2":
        return byte_level
    regex = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "qwen2": QWEN2}.get(kind)
    if regex is None:
        raise SystemExit(f"hf_tokenizer: pre-tokenizer {kind}: not known")
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


class GgufTokenizer:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        get = lambda name: reader.fields[name].contents() if name in reader.fields else None
        tokens = get("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ", 1)) for m in get("tokenizer.ggml.merges")]
        kinds = get("tokenizer.ggml.token_type") or []
        t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges, ignore_merges=False))
        t.pre_tokenizer = pre_tokenizer(get("tokenizer.ggml.pre"))
        t.decoder = decoders.ByteLevel()
        self.plain = t
        self.special = Tokenizer.from_str(t.to_str())
        self.special.add_special_tokens([AddedToken(s, normalized=False, special=True)
                                         for s, k in zip(tokens, kinds) if k in (CONTROL, USER)])
        self.tokens = tokens
        self.template = get("tokenizer.chat_template")
        self.bos = get("tokenizer.ggml.bos_token_id")
        self.eos = get("tokenizer.ggml.eos_token_id")

    def encode(self, text):
        """Plain text: spellings of control tokens are text."""
        return self.plain.encode(text, add_special_tokens=False).ids

    def chat(self, messages):
        """Messages through the template, ending with the opening of the assistant's turn."""
        import jinja2
        import jinja2.sandbox

        env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        spell = lambda i: self.tokens[i] if i is not None else ""
        text = env.from_string(self.template).render(messages=messages, add_generation_prompt=True,
                                                     bos_token=spell(self.bos), eos_token=spell(self.eos))
        return self.special.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.special.decode(ids, skip_special_tokens=False)
