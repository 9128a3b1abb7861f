/*
 * Opening vocabularies: what is refused and how the error names it; ids without text; fingerprints; digests of KV
 * blocks (expected values by Python's hashlib.blake2b).
 */
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "unit/text_gguf.h"
#include "unit/text_model.h"

/* A vocabulary of a few entries. */
struct small {
    const char *model, *pre, *template;
    const char *const *entry;
    const int32_t *kind; /* NULL: no such key */
    size_t n_entry, n_kind;
    const char *const *merge;
    size_t n_merge;
    int64_t bos, eos, eot; /* -1: no such key */
    int add_bos;           /* 1 true, 0 absent, -1 false */
};

static const char *const letters[] = {"a", "b", "c", "\xc4\xa0", "ab", "abc", "<end>", "<turn>", "[PAD8]", "<x y>"};
static const int32_t letter_kind[] = {1, 1, 1, 1, 1, 1, 3, 4, 5, 4};
static const char *const letter_merge[] = {"a b", "ab c"};

static struct small letters_file(void)
{
    return (struct small){"gpt2", "gpt-2", NULL, letters, letter_kind, 10, 10, letter_merge, 2, -1, 6, -1, 0};
}

static int open_small(struct err *e, struct text **t, const struct small *s)
{
    struct tiny_gguf w;
    struct gguf *g;
    tiny_begin(&w);
    if (s->model != NULL)
        tiny_key_str(&w, "tokenizer.ggml.model", s->model);
    if (s->pre != NULL)
        tiny_key_str(&w, "tokenizer.ggml.pre", s->pre);
    if (s->template != NULL)
        tiny_key_str(&w, "tokenizer.chat_template", s->template);
    tiny_array(&w, "tokenizer.ggml.tokens", 8, s->n_entry);
    for (size_t i = 0; i < s->n_entry; i++)
        tiny_str(&w, s->entry[i], strlen(s->entry[i]));
    if (s->kind != NULL) {
        tiny_array(&w, "tokenizer.ggml.token_type", 5, s->n_kind);
        tiny_put(&w, s->kind, 4 * s->n_kind);
    }
    tiny_array(&w, "tokenizer.ggml.merges", 8, s->n_merge);
    for (size_t i = 0; i < s->n_merge; i++)
        tiny_str(&w, s->merge[i], strlen(s->merge[i]));
    if (s->bos >= 0)
        tiny_key_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)s->bos);
    if (s->eos >= 0)
        tiny_key_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)s->eos);
    if (s->eot >= 0)
        tiny_key_u32(&w, "tokenizer.ggml.eot_token_id", (uint32_t)s->eot);
    if (s->add_bos != 0)
        tiny_key_bool(&w, "tokenizer.ggml.add_bos_token", s->add_bos > 0);
    *t = NULL;
    int r = tiny_open(e, &g, &w);
    if (r == 0) {
        r = text_open(e, t, g);
        gguf_free(g);
    }
    return r;
}

static void check_ids(const struct text *t, const char *s, int flags, const uint32_t *want, size_t n)
{
    struct err e;
    struct text_ids v = {0};
    assert_int_equal(text_encode(&e, t, &v, s, strlen(s), flags), 0);
    assert_int_equal(v.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(v.ids[i], want[i]);
    text_ids_free(&v);
}

static void kinds_of_entries_decide_their_ids(void **state)
{
    (void)state;
    struct err e;
    struct text *t;
    struct small s = letters_file();
    size_t n;
    assert_int_equal(open_small(&e, &t, &s), 0);
    assert_int_equal(text_n_token(t), 10);
    check_ids(t, "abc ab", 0, (uint32_t[]){5, 3, 4}, 3);
    check_ids(t, "a<end>b", 0, (uint32_t[]){0, 1}, 2); /* '<', 'e', 'n', 'd', '>' have no entries: omitted */
    check_ids(t, "a<end>b", TEXT_CONTROL, (uint32_t[]){0, 6, 1}, 3);
    check_ids(t, "a<turn>b", 0, (uint32_t[]){0, 7, 1}, 3); /* user-defined: recognised in any text */
    check_ids(t, "a<x y>b", 0, (uint32_t[]){0, 9, 1}, 3);
    check_ids(t, "[PAD8]", TEXT_CONTROL, NULL, 0);
    assert_true(text_is_control(t, 6) && text_is_end(t, 6));
    assert_false(text_is_control(t, 7) || text_is_end(t, 7) || text_is_control(t, 10) || text_is_end(t, 10));
    assert_memory_equal(text_piece(t, 3, &n), " ", 1);
    assert_memory_equal(text_piece(t, 9, &n), "<x y>", 5);
    assert_memory_equal(text_entry(t, 6, &n), "<end>", 5);
    for (uint32_t id = 6; id < 20; id += id == 6 ? 2 : id == 8 ? 2 : 1) {
        text_piece(t, id, &n);
        assert_int_equal(n, 0); /* control, padding, out of range */
    }
    text_entry(t, 10, &n);
    assert_int_equal(n, 0);
    text_free(t);
}

/* Llama looks whole pieces up before merging: it finds an entry that no merge produces; other kinds do not. */
static void only_llama_looks_up_whole_pieces(void **state)
{
    (void)state;
    struct err e;
    struct text *t;
    struct small s = letters_file();
    s.n_merge = 1;
    assert_int_equal(open_small(&e, &t, &s), 0);
    check_ids(t, "abc", 0, (uint32_t[]){4, 2}, 2);
    text_free(t);
    s.pre = "llama-bpe";
    s.add_bos = -1;
    assert_int_equal(open_small(&e, &t, &s), 0);
    check_ids(t, "abc", 0, (uint32_t[]){5}, 1);
    text_free(t);
}

/* A wrong token_type does not let text produce the turn markers. */
static void markers_are_control_tokens_in_any_file(void **state)
{
    (void)state;
    static const char *const entry[] = {"a", "<|im_start|>", "<|im_end|>", "x", "xa", "y"};
    static const int32_t kind[] = {1, 4, 4, 1, 3, 1};
    static const char *const merge[] = {"x a"};
    struct err e;
    struct text *t;
    struct small s = {"gpt2", "smollm", "<|im_start|>{{ m }}<|im_end|>", entry, kind, 6, 6, merge, 1, -1, -1, 5, 0};
    assert_int_equal(open_small(&e, &t, &s), 0);
    check_ids(t, "<|im_start|>a<|im_end|>", 0, (uint32_t[]){0, 0}, 2); /* the a of "start" is an entry too */
    assert_true(text_is_control(t, 1) && text_is_control(t, 2) && text_is_end(t, 2) && text_is_end(t, 5));
    check_ids(t, "xay", 0, (uint32_t[]){3, 0}, 2); /* neither bytes nor merges produce control tokens */
    text_free(t);
}

static void refused(const struct small *s, const char *part)
{
    struct err e;
    struct text *t;
    assert_int_equal(open_small(&e, &t, s), ERR_NO);
    if (strstr(e.text, part) == NULL || strstr(e.text, "/tmp/text-test-") == NULL)
        fail_msg("'%s' does not name the file and '%s'", e.text, part);
}

static void unsupported_settings_are_named(void **state)
{
    (void)state;
    static const char *const bad_merge[] = {"a b", "b c", "noblank", " ", ""};
    static const int32_t bad_kind[] = {1, 1, 1, 1, 1, 1, 3, 4, 5, 9};
    struct small s = letters_file(), x;
    x = s;
    x.model = "llama";
    refused(&x, "'llama'");
    x = s;
    x.model = NULL;
    refused(&x, "tokenizer.ggml.model");
    x = s;
    x.pre = "tekken";
    refused(&x, "'tekken'");
    x = s;
    x.n_kind = 9;
    refused(&x, "token_type");
    x = s;
    x.kind = bad_kind;
    refused(&x, "entry 9");
    x = s;
    x.eos = 10;
    refused(&x, "eos_token_id");
    x = s;
    x.bos = INT64_C(4294967295);
    refused(&x, "bos_token_id");
    x = s;
    x.add_bos = 1;
    refused(&x, "bos_token_id");
    x = s;
    x.n_entry = 0;
    refused(&x, "tokens");
    for (size_t i = 1; i < 5; i++) {
        x = s;
        x.merge = bad_merge + i;
        x.n_merge = 1;
        refused(&x, "merge 0");
    }
}

static void common_names_are_supported(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2",     "phi-2",  "smollm",   "starcoder",
                                        "llama-bpe", "llama3", "llama-v3", "qwen2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct err e;
        struct text *t;
        struct small s = letters_file();
        s.pre = names[i];
        s.add_bos = -1;
        assert_int_equal(open_small(&e, &t, &s), 0);
        text_free(t);
    }
}

/* Without a name of the rule, or with the name that states that it is not known, ids would be a guess. */
static void an_unknown_rule_is_refused(void **state)
{
    (void)state;
    struct small s = letters_file();
    s.pre = NULL;
    refused(&s, "tokenizer.ggml.pre is missing");
    s.pre = "default";
    refused(&s, "tokenizer.ggml.pre is 'default'");
    s.pre = "";
    refused(&s, "tokenizer.ggml.pre '' is not supported");
}

static void fingerprint_of(uint8_t out[32], const struct small *s)
{
    struct err e;
    struct text *t;
    assert_int_equal(open_small(&e, &t, s), 0);
    memcpy(out, text_fingerprint(t), 32);
    text_free(t);
}

/* Whatever changes ids changes the fingerprint; the chat template does not change it. */
static void fingerprints_differ_between_vocabularies(void **state)
{
    (void)state;
    static const char *const swapped[] = {"b", "a", "c", "\xc4\xa0", "ab", "abc", "<end>", "<turn>", "[PAD8]", "<x y>"};
    static const char *const merge2[] = {"ab c", "a b"};
    struct small s = letters_file(), x[8];
    uint8_t base[32], other[8][32];
    fingerprint_of(base, &s);
    for (size_t i = 0; i < 8; i++)
        x[i] = s;
    x[0].pre = "smollm";
    x[1].entry = swapped;
    x[2].kind = NULL;
    x[3].n_merge = 1;
    x[4].merge = merge2;
    x[5].bos = 6;
    x[6].eos = -1;
    x[7].pre = "llama-bpe";
    x[7].add_bos = -1;
    for (size_t i = 0; i < 8; i++) {
        fingerprint_of(other[i], &x[i]);
        assert_memory_not_equal(other[i], base, 32);
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(other[i], other[j], 32);
    }
    s.template = "unknown";
    fingerprint_of(other[0], &s);
    assert_memory_equal(other[0], base, 32);
}

static void blocks_are_named_by_blake2b(void **state)
{
    (void)state;
    uint32_t ids[KV_BLOCK];
    uint8_t a[KV_DIGEST], b[KV_DIGEST];
    char hex[65];
    for (uint32_t i = 0; i < KV_BLOCK; i++)
        ids[i] = 1000 + i;
    text_digest(a, NULL, ids, NULL, 0);
    sodium_bin2hex(hex, sizeof hex, a, sizeof a);
    assert_string_equal(hex, "a569f1f5d29c0a21960f6889028df5d493a8ae3a8085b390b15decefcafba15c");
    for (uint32_t i = 0; i < KV_BLOCK; i++)
        ids[i] = UINT32_MAX - i;
    text_digest(b, a, ids, "tenant", 7);
    sodium_bin2hex(hex, sizeof hex, b, sizeof b);
    assert_string_equal(hex, "d570f9535a4a875b4d3f0e5b997a1d011dc483bb429963081d7972359e854d36");
}

/* Published facts of the default model's file. */
static void the_default_model_opens(void **state)
{
    (void)state;
    struct gguf *g = default_model();
    struct text *t;
    struct err e;
    uint32_t id;
    size_t n, n_control = 0;
    if (g == NULL)
        fail_msg("no default model: scripts/get-model");
    assert_int_equal(text_open(&e, &t, g), 0);
    gguf_free(g);
    assert_int_equal(text_n_token(t), 49152);
    assert_true(text_bos(t, &id)); /* named by the file, though it is not added */
    assert_int_equal(id, 1);
    assert_true(text_pad(t, &id));
    assert_int_equal(id, 2);
    assert_true(text_eos(t, &id));
    assert_int_equal(id, 2);
    assert_true(text_is_end(t, 2) && text_is_end(t, 0) && !text_is_end(t, 1));
    for (id = 0; id < 49152; id++)
        n_control += text_is_control(t, id);
    assert_int_equal(n_control, 17);
    assert_memory_equal(text_entry(t, 2, &n), "<|im_end|>", 10);
    text_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_entries_decide_their_ids),
        cmocka_unit_test(only_llama_looks_up_whole_pieces),
        cmocka_unit_test(markers_are_control_tokens_in_any_file),
        cmocka_unit_test(unsupported_settings_are_named),
        cmocka_unit_test(common_names_are_supported),
        cmocka_unit_test(an_unknown_rule_is_refused),
        cmocka_unit_test(fingerprints_differ_between_vocabularies),
        cmocka_unit_test(blocks_are_named_by_blake2b),
        cmocka_unit_test(the_default_model_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
