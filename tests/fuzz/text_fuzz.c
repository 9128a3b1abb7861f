/*
 * Fuzzes tokenization of arbitrary bytes. Invariants: the concatenated pieces of the ids are the text with repaired
 * UTF-8, without bytes that the vocabulary lacks; no id is a control token; the streaming detokenizer outputs the same
 * text for any position of the stop texts. The first byte selects the pre-tokenizer. The harness writes a small
 * vocabulary of all bytes and some merges, so it needs no model.
 */
#include <assert.h>

#include "text/text_private.h"
#include "unit/text_gguf.h"
#include "unit/text_templates.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const kinds[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
static struct text *texts[4];

static const char *const extra[] = {"ab", "abc", "\xc4\xa0\xc4\xa0", "\xc3\xa6\xc2\xbc", "aa", "aaaa", "12", "'s"};
static const char *const merges[] = {"a b", "ab c", "\xc4\xa0 \xc4\xa0", "\xc3\xa6 \xc2\xbc", "a a", "aa aa",
                                     "1 2", "' s"};
static const char *const added[] = {"<end>", "<e", "<user>", "<us"};
static const int32_t added_kind[] = {3, 3, 4, 4};

static struct text *open_kind(const char *pre)
{
    struct tiny_gguf w;
    struct gguf *g;
    struct text *t;
    struct err e;
    tiny_begin(&w);
    tiny_key_str(&w, "tokenizer.ggml.model", "gpt2");
    tiny_key_str(&w, "tokenizer.ggml.pre", pre);
    tiny_array(&w, "tokenizer.ggml.tokens", 8, 256 + 8 + 4);
    for (int b = 0; b < 256; b++) {
        uint8_t s[4];
        tiny_str(&w, (const char *)s, (size_t)text_utf8_put(s, text_byte_spelling((uint8_t)b)));
    }
    for (int i = 0; i < 8; i++)
        tiny_str(&w, extra[i], strlen(extra[i]));
    for (int i = 0; i < 4; i++)
        tiny_str(&w, added[i], strlen(added[i]));
    tiny_array(&w, "tokenizer.ggml.token_type", 5, 256 + 8 + 4);
    for (int i = 0; i < 256 + 8; i++)
        tiny_u32(&w, 1);
    tiny_put(&w, added_kind, sizeof added_kind);
    tiny_array(&w, "tokenizer.ggml.merges", 8, 8);
    for (int i = 0; i < 8; i++)
        tiny_str(&w, merges[i], strlen(merges[i]));
    tiny_key_u32(&w, "tokenizer.ggml.eos_token_id", 256 + 8);
    tiny_key_bool(&w, "tokenizer.ggml.add_bos_token", 0);
    tiny_key_str(&w, "tokenizer.chat_template", TEMPLATE_CHATML);
    if (tiny_open(&e, &g, &w) != 0 || text_open(&e, &t, g) != 0)
        abort();
    gguf_free(g);
    return t;
}

static void check_round_trip(const struct text *t, const struct text_ids *v, const char *want, size_t n_want)
{
    size_t at = 0;
    for (size_t i = 0; i < v->n; i++) {
        size_t n;
        const uint8_t *p = text_piece(t, v->ids[i], &n);
        assert(!text_is_control(t, v->ids[i]));
        assert(n > 0 && n <= n_want - at && memcmp(p, want + at, n) == 0);
        at += n;
    }
    assert(at == n_want);
}

/* Length of the text before the stop that is complete first; of several, the longest. */
static size_t expected_end(const char *s, size_t n, const char *const *stop, const size_t *len, size_t n_stop)
{
    size_t best = SIZE_MAX, begin = n;
    for (size_t i = 0; i < n_stop; i++) {
        const char *p = len[i] == 0 ? NULL : memmem(s, n, stop[i], len[i]);
        size_t at = p == NULL ? SIZE_MAX : (size_t)(p - s);
        if (p != NULL && (at + len[i] < best || (at + len[i] == best && at < begin))) {
            best = at + len[i];
            begin = at;
        }
    }
    return begin;
}

static void check_out(const struct text *t, const struct text_ids *v, const char *want, size_t n_want)
{
    const char *stop[2] = {"aab", want + n_want / 2};
    size_t len[2] = {3, n_want - n_want / 2 < 6 ? n_want - n_want / 2 : 6}, at = 0, n;
    struct text_out *o;
    struct err e;
    const char *p;
    int stopped = -1;
    size_t n_stop = text_utf8_valid(stop[1], len[1]) ? 2 : 1;
    size_t end = expected_end(want, n_want, stop, len, n_stop);
    if (text_out_new(&e, &o, t, NULL, 0, stop, len, n_stop) != 0)
        abort();
    for (size_t i = 0; i < v->n; i++) {
        text_out_push(o, v->ids[i], &p, &n, &stopped);
        assert(n <= end - at && memcmp(p, want + at, n) == 0 && text_utf8_valid(p, n));
        at += n;
    }
    text_out_end(o, &p, &n);
    assert(n == end - at && memcmp(p, want + at, n) == 0);
    text_out_free(o);
}

/* Ids that are the encoding of no text: the output is valid UTF-8 and complete. */
static void check_any_ids(const struct text *t, const uint8_t *data, size_t size)
{
    struct text_out *o;
    struct err e;
    const char *p;
    size_t n;
    int stopped;
    uint32_t prompt[4] = {0};
    for (size_t i = 0; i < 4 && i < size; i++)
        prompt[i] = data[i];
    if (text_out_new(&e, &o, t, prompt, 4, NULL, NULL, 0) != 0)
        abort();
    text_out_show(o, false, size % 2 != 0);
    for (size_t i = 4; i < size; i++) {
        text_out_push(o, (uint32_t)data[i] + (data[i] == 255 ? data[i - 1] : 0), &p, &n, &stopped);
        assert(text_utf8_valid(p, n));
    }
    text_out_end(o, &p, &n);
    assert(text_utf8_valid(p, n));
    text_out_free(o);
}

static void check_chat(const struct text *t, const char *s, size_t n)
{
    struct text_message m[2] = {{"user", s, n / 2}, {"assistant", s + n / 2, n - n / 2}};
    struct text_ids v = {0};
    struct err e;
    char *text;
    enum text_chat_end end = (enum text_chat_end)(n % 3);
    size_t n_text;
    if (text_chat(&e, t, &v, m, 2, end) != 0 || text_chat_render(&e, t, &text, &n_text, m, 2, end) != 0)
        abort();
    for (size_t i = 0; i < v.n; i++)
        assert(!text_is_control(t, v.ids[i])); /* its markers are no entries here */
    free(text);
    text_ids_free(&v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int kind = data[0] % 4;
    if (texts[kind] == NULL)
        texts[kind] = open_kind(kinds[kind]);
    const struct text *t = texts[kind];
    const char *s = (const char *)data + 1;
    struct text_ids v = {0};
    struct err e;
    char *want, *composed = NULL;
    size_t n_want, n_composed;
    if (text_utf8_repair(&e, &want, &n_want, s, size - 1) != 0 || text_encode(&e, t, &v, s, size - 1, 0) != 0)
        abort();
    assert(text_utf8_valid(want, n_want));
    if (t->nfc && text_nfc(&e, &composed, &n_composed, want, n_want) != 0)
        abort();
    /* Between user-defined spellings text is normalised by itself, so only texts without them are compared. */
    if (composed == NULL || memchr(want, '<', n_want) == NULL) {
        check_round_trip(t, &v, composed != NULL ? composed : want, composed != NULL ? n_composed : n_want);
        check_out(t, &v, composed != NULL ? composed : want, composed != NULL ? n_composed : n_want);
    }
    v.n = 0;
    if (text_encode(&e, t, &v, s, size - 1, TEXT_CONTROL | TEXT_BOS) != 0)
        abort();
    text_ids_free(&v);
    check_any_ids(t, data, size);
    check_chat(t, s, size - 1);
    free(want);
    free(composed);
    return 0;
}
