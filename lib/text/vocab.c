/* Reads the vocabulary of a model file. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_private.h"

/* Printable Latin-1 bytes stand for themselves in entries, the others for the code points from 256 on, in order. */
uint32_t text_byte_spelling(uint8_t byte)
{
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173))
        return byte;
    if (byte <= 32)
        return 256u + byte;
    if (byte <= 160)
        return 256u + 33 + (byte - 127u);
    return 256u + 33 + 34;
}

/* Several names with the same published settings are aliases. */
static const struct {
    const char *name;
    enum text_split split;
    bool nfc, ignore_merges, add_bos;
} kinds[] = {
    {"gpt-2", SPLIT_GPT2, false, false, false},       {"gpt2", SPLIT_GPT2, false, false, false},
    {"phi-2", SPLIT_GPT2, false, false, false},       {"smollm", SPLIT_SMOLLM, false, false, false},
    {"starcoder", SPLIT_SMOLLM, false, false, false}, {"refact", SPLIT_SMOLLM, false, false, false},
    {"llama-bpe", SPLIT_LLAMA3, false, true, true},   {"llama3", SPLIT_LLAMA3, false, true, true},
    {"llama-v3", SPLIT_LLAMA3, false, true, true},    {"qwen2", SPLIT_QWEN2, true, false, false},
};

static bool same(struct gguf_str a, const char *b)
{
    return a.n == strlen(b) && memcmp(a.p, b, a.n) == 0;
}

/* "default", or no key at all, means that the program which wrote the file did not know how the model cuts text. What
 * other programs then do is a guess, with other ids than those that the model was trained with. */
static int refuse_guess(struct err *e, const struct text *t, const char *what)
{
    return err_set(e, ERR_NO,
                   "%s: tokenizer.ggml.pre is %s, so how the model cuts text into words is not known: convert the "
                   "model again, or set it with gguf-new-metadata --pre-tokenizer (supported: gpt-2, llama-bpe, qwen2, "
                   "smollm)",
                   t->path, what);
}

static int open_kind(struct err *e, struct text *t, const struct gguf *g)
{
    struct gguf_str model, pre;
    int rc = gguf_string(e, g, "tokenizer.ggml.model", &model);
    if (rc)
        return rc;
    if (!same(model, "gpt2"))
        return err_set(e, ERR_NO, "%s: tokenizer.ggml.model '%.*s' is not supported (supported: gpt2)", t->path,
                       model.n < 60 ? (int)model.n : 60, model.p);
    if (!gguf_has(g, "tokenizer.ggml.pre"))
        return refuse_guess(e, t, "missing");
    rc = gguf_string(e, g, "tokenizer.ggml.pre", &pre);
    if (rc)
        return rc;
    if (same(pre, "default"))
        return refuse_guess(e, t, "'default'");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!same(pre, kinds[i].name))
            continue;
        t->split = kinds[i].split;
        t->nfc = kinds[i].nfc;
        t->ignore_merges = kinds[i].ignore_merges;
        t->add_bos = kinds[i].add_bos;
        return 0;
    }
    return err_set(e, ERR_NO,
                   "%s: tokenizer.ggml.pre '%.*s' is not supported (supported: gpt-2, llama-bpe, qwen2, smollm)",
                   t->path, pre.n < 60 ? (int)pre.n : 60, pre.p);
}

/* The byte that a code point stands for in entries, or -1. */
static int spelt_byte(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 255 && cp != 173))
        return (int)cp;
    if (cp >= 256 && cp <= 256 + 32)
        return (int)(cp - 256);
    if (cp > 256 + 32 && cp < 256 + 67)
        return (int)(cp - 256 - 33 + 127);
    return cp == 256 + 67 ? 173 : -1;
}

/* An entry with a code point that stands for no byte is taken literally, as decoders do. */
static size_t piece_of(uint8_t *out, const struct text_entry_row *row)
{
    const uint8_t *s = (const uint8_t *)row->entry;
    size_t n = 0;
    uint32_t cp;
    if (row->kind == ENTRY_CONTROL || row->kind == ENTRY_UNKNOWN || row->kind == ENTRY_UNUSED)
        return 0;
    for (size_t i = 0; row->kind != ENTRY_USER && i < row->n_entry;) {
        int k = text_utf8_step(s + i, row->n_entry - i, &cp);
        int byte = k > 0 ? spelt_byte(cp) : -1;
        if (byte < 0)
            break;
        out[n++] = (uint8_t)byte;
        i += (size_t)k;
        if (i == row->n_entry)
            return n;
    }
    memcpy(out, s, row->n_entry);
    return row->n_entry;
}

static int copy_entries(struct err *e, struct text *t, const struct gguf *g)
{
    const struct gguf_str *s;
    uint64_t n, total = 0;
    int rc = gguf_strs(e, g, "tokenizer.ggml.tokens", &s, &n);
    if (rc)
        return rc;
    if (n == 0 || n > INT32_MAX)
        return err_set(e, ERR_NO, "%s: tokenizer.ggml.tokens has %llu entries, outside 1 to %d", t->path,
                       (unsigned long long)n, INT32_MAX);
    for (uint64_t i = 0; i < n; i++)
        total += s[i].n;
    t->row = calloc(n, sizeof *t->row);
    t->entry_bytes = malloc(total + 1);
    t->piece_bytes = malloc(total + 1);
    if (!t->row || !t->entry_bytes || !t->piece_bytes)
        return err_nomem(e, "vocabulary", n * sizeof *t->row + 2 * total);
    t->n_token = (uint32_t)n;
    char *p = t->entry_bytes;
    for (uint64_t i = 0; i < n; i++) {
        if (s[i].n > INT32_MAX)
            return err_set(e, ERR_NO, "%s: entry %llu of the vocabulary has %zu bytes, more than the limit of %d",
                           t->path, (unsigned long long)i, s[i].n, INT32_MAX);
        memcpy(p, s[i].p, s[i].n);
        t->row[i].entry = p;
        t->row[i].n_entry = (uint32_t)s[i].n;
        t->row[i].kind = ENTRY_NORMAL;
        if (s[i].n > t->n_entry_max)
            t->n_entry_max = s[i].n;
        p += s[i].n;
    }
    return text_entry_map_build(e, &t->map, t->row, t->n_token);
}

static int read_entry_kinds(struct err *e, struct text *t, const struct gguf *g)
{
    const int32_t *kind;
    uint64_t n;
    if (!gguf_has(g, "tokenizer.ggml.token_type"))
        return 0;
    int rc = gguf_i32s(e, g, "tokenizer.ggml.token_type", &kind, &n);
    if (rc)
        return rc;
    if (n != t->n_token)
        return err_set(e, ERR_NO, "%s: tokenizer.ggml.token_type has %llu elements for %u entries", t->path,
                       (unsigned long long)n, t->n_token);
    for (uint32_t i = 0; i < t->n_token; i++) {
        if (kind[i] < ENTRY_UNDEFINED || kind[i] > ENTRY_BYTE)
            return err_set(e, ERR_NO, "%s: entry %u of the vocabulary has the unknown kind %d", t->path, i, kind[i]);
        t->row[i].kind = (uint8_t)kind[i];
    }
    return 0;
}

static int read_id(struct err *e, uint32_t *out, const struct text *t, const struct gguf *g, const char *key)
{
    uint64_t id = TEXT_NONE;
    if (gguf_has(g, key)) {
        int rc = gguf_u64(e, g, key, &id, 0, t->n_token - 1);
        if (rc)
            return rc;
    }
    *out = (uint32_t)id;
    return 0;
}

static void mark_control(struct text *t, uint32_t id, bool end)
{
    if (id == TEXT_NONE)
        return;
    t->row[id].kind = ENTRY_CONTROL;
    t->row[id].end = t->row[id].end || end;
}

/* Some converted files mark their turn markers as text. So the ids that the file names as special, and the markers of
 * its own template, are control tokens regardless of token_type. Control tokens known to end turns or texts do so even
 * if the file names another as its eos, because files name only one of several. */
static int read_special(struct err *e, struct text *t, const struct gguf *g)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const end_marks[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>"};
    int rc = read_id(e, &t->bos, t, g, "tokenizer.ggml.bos_token_id");
    rc = rc ? rc : read_id(e, &t->eos, t, g, ends[0]);
    struct err none; /* the padding token is informational: an invalid id is ignored */
    if (!rc && read_id(&none, &t->pad, t, g, "tokenizer.ggml.padding_token_id"))
        t->pad = TEXT_NONE;
    mark_control(t, t->bos, false);
    for (size_t i = 0; !rc && i < 3; i++) {
        uint32_t id;
        rc = read_id(e, &id, t, g, ends[i]);
        if (!rc)
            mark_control(t, id, true);
    }
    for (const char *const *m = text_chat_markers(t->chat.markers); !rc && *m; m++)
        mark_control(t, text_entry_find(&t->map, t->row, *m, strlen(*m)), false);
    for (size_t i = 0; !rc && i < sizeof end_marks / sizeof end_marks[0]; i++) {
        uint32_t id = text_entry_find(&t->map, t->row, end_marks[i], strlen(end_marks[i]));
        if (id != TEXT_NONE && t->row[id].kind == ENTRY_CONTROL)
            t->row[id].end = true;
    }
    if (!rc && gguf_has(g, "tokenizer.ggml.add_bos_token"))
        rc = gguf_bool(e, g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    if (!rc && t->add_bos && t->bos == TEXT_NONE)
        rc = err_set(e, ERR_NO, "%s: the tokenizer adds a BOS token, but tokenizer.ggml.bos_token_id is missing",
                     t->path);
    return rc;
}

static int index_entries(struct err *e, struct text *t)
{
    uint8_t *p = t->piece_bytes;
    for (uint32_t id = 0; id < t->n_token; id++) {
        struct text_entry_row *row = &t->row[id];
        row->piece = p;
        row->n_piece = (uint32_t)piece_of(p, row);
        p += row->n_piece;
        if (row->n_piece > t->n_piece_max)
            t->n_piece_max = row->n_piece;
        int rc = 0;
        if (row->kind == ENTRY_USER)
            rc = text_added_put(e, &t->added, row->entry, row->n_entry, id);
        if (!rc && (row->kind == ENTRY_USER || row->kind == ENTRY_CONTROL))
            rc = text_added_put(e, &t->control, row->entry, row->n_entry, id);
        if (rc)
            return rc;
    }
    for (int b = 0; b < 256; b++) {
        uint8_t s[4];
        int n = text_utf8_put(s, text_byte_spelling((uint8_t)b));
        uint32_t id = text_entry_find(&t->map, t->row, (const char *)s, (size_t)n);
        t->byte_id[b] = id != TEXT_NONE && t->row[id].kind != ENTRY_CONTROL ? id : TEXT_NONE;
    }
    return 0;
}

/* Skips a merge that would produce a control token, so that text never becomes a control token. */
static int read_merges(struct err *e, struct text *t, const struct gguf *g)
{
    const struct gguf_str *s;
    uint64_t n;
    int rc = gguf_strs(e, g, "tokenizer.ggml.merges", &s, &n);
    if (!rc && n > INT32_MAX)
        rc = err_set(e, ERR_NO, "%s: tokenizer.ggml.merges has %llu elements", t->path, (unsigned long long)n);
    rc = rc ? rc : text_merges_new(e, &t->merges, n);
    char *joined = !rc ? malloc(t->n_entry_max + 1) : NULL;
    if (!rc && !joined)
        rc = err_nomem(e, "merges", t->n_entry_max + 1);
    for (uint64_t i = 0; !rc && i < n; i++) {
        const char *gap = s[i].n > 2 ? memchr(s[i].p + 1, ' ', s[i].n - 2) : NULL;
        uint32_t left = TEXT_NONE, right = TEXT_NONE, both = TEXT_NONE;
        if (gap && s[i].n - 1 <= t->n_entry_max) {
            size_t n_left = (size_t)(gap - s[i].p), n_right = s[i].n - n_left - 1;
            memcpy(joined, s[i].p, n_left);
            memcpy(joined + n_left, gap + 1, n_right);
            left = text_entry_find(&t->map, t->row, joined, n_left);
            right = text_entry_find(&t->map, t->row, gap + 1, n_right);
            both = text_entry_find(&t->map, t->row, joined, n_left + n_right);
        }
        if (left == TEXT_NONE || right == TEXT_NONE || both == TEXT_NONE)
            rc = err_set(e, ERR_NO, "%s: merge %llu '%.*s' contains or produces a token that is not in the vocabulary",
                         t->path, (unsigned long long)i, s[i].n < 60 ? (int)s[i].n : 60, s[i].p);
        else if (t->row[both].kind != ENTRY_CONTROL)
            text_merges_put(&t->merges, left, right, (uint32_t)i, both);
    }
    if (!rc)
        text_fingerprint_make(t, s, n);
    free(joined);
    return rc;
}

static int open_chat(struct err *e, struct text *t, const struct gguf *g)
{
    struct gguf_str s;
    if (!gguf_has(g, "tokenizer.chat_template"))
        return 0;
    int rc = gguf_string(e, g, "tokenizer.chat_template", &s);
    if (rc)
        return rc;
    t->template = malloc(s.n + 1);
    if (!t->template)
        return err_nomem(e, "chat template", s.n);
    memcpy(t->template, s.p, s.n);
    t->n_template = s.n;
    return text_chat_recognise(e, &t->chat, s.p, s.n);
}

int text_open(struct err *e, struct text **out, const struct gguf *g)
{
    struct text *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, "vocabulary", sizeof *t);
    t->path = strdup(gguf_path(g));
    int rc = !t->path ? err_nomem(e, "path", strlen(gguf_path(g)) + 1) : 0;
    if (!rc && sodium_init() < 0)
        rc = err_set(e, ERR_SYS, "libsodium failed to initialise");
    rc = rc ? rc : open_kind(e, t, g);
    rc = rc ? rc : copy_entries(e, t, g);
    rc = rc ? rc : read_entry_kinds(e, t, g);
    rc = rc ? rc : open_chat(e, t, g);
    rc = rc ? rc : read_special(e, t, g);
    rc = rc ? rc : index_entries(e, t);
    rc = rc ? rc : read_merges(e, t, g);
    if (rc) {
        text_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void text_free(struct text *t)
{
    if (!t)
        return;
    text_chat_style_free(&t->chat);
    text_added_free(&t->added);
    text_added_free(&t->control);
    free(t->merges.slot);
    free(t->map.slot);
    free(t->row);
    free(t->entry_bytes);
    free(t->piece_bytes);
    free(t->path);
    free(t->template);
    free(t);
}
