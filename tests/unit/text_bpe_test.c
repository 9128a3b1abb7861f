/*
 * Ids compared with Hugging Face's tokenizers (tests/golden/ids.jsonl, made by scripts/golden-ids), and the time for
 * long runs. All kinds use the vocabulary of the default model.
 */
#include <jansson.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "text/text_private.h"
#include "unit/text_gguf.h"
#include "unit/text_model.h"

enum { N_KIND = 5 };
static const char *const kind_name[N_KIND] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "smollm+added"};
static const enum text_split kind_split[] = {SPLIT_GPT2, SPLIT_SMOLLM, SPLIT_LLAMA3, SPLIT_QWEN2};

struct golden {
    json_t *lines; /* array */
    struct gguf *g;
    struct text *t[N_KIND];
};

static int set_up(void **state)
{
    struct golden *s = calloc(1, sizeof *s);
    *state = s;
    s->g = default_model();
    FILE *f = fopen("tests/golden/ids.jsonl", "r");
    if (s->g == NULL || f == NULL)
        return f != NULL ? fclose(f) : 0;
    s->lines = json_array();
    for (json_t *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)) != NULL;)
        json_array_append_new(s->lines, line);
    fclose(f);
    json_t *added = json_object_get(json_array_get(s->lines, 0), "added");
    const char *user[16];
    for (size_t i = 0; i < json_array_size(added) && i < 16; i++)
        user[i] = json_string_value(json_array_get(added, i));
    for (int k = 0; k < N_KIND; k++) {
        struct other o = {.pre = k == 4 ? "smollm" : kind_name[k], .add_bos = -1, .bos = 1, .eos = 2};
        if (k == 4) {
            o.user = user;
            o.n_user = json_array_size(added);
        }
        s->t[k] = open_other(s->g, &o);
        if (s->t[k] == NULL)
            return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    struct golden *s = *state;
    for (int k = 0; k < N_KIND; k++)
        text_free(s->t[k]);
    gguf_free(s->g);
    json_decref(s->lines);
    free(s);
    return 0;
}

static struct golden *need_golden(void **state)
{
    struct golden *s = *state;
    if (s->lines == NULL)
        fail_msg("no default model: scripts/get-model");
    return s;
}

static void check_ids(const struct text *t, const char *kind, json_t *text, json_t *want, int flags)
{
    struct err e;
    struct text_ids got = {0};
    bool same = text_encode(&e, t, &got, json_string_value(text), json_string_length(text), flags) == 0 &&
                got.n == json_array_size(want);
    for (size_t i = 0; same && i < got.n; i++)
        same = got.ids[i] == (uint64_t)json_integer_value(json_array_get(want, i));
    if (!same) {
        char *shown = json_dumps(text, JSON_ENCODE_ANY);
        print_error("%s: %s gives", kind, shown);
        for (size_t i = 0; i < got.n; i++)
            print_error(" %u", got.ids[i]);
        free(shown);
        shown = json_dumps(want, JSON_COMPACT);
        print_error(", not %s\n", shown);
        free(shown);
        fail();
    }
    text_ids_free(&got);
}

static void texts_give_the_reference_ids(void **state)
{
    struct golden *s = need_golden(state);
    size_t i, n_checked = 0;
    json_t *line;
    json_array_foreach(s->lines, i, line)
    {
        json_t *text = json_object_get(line, "text");
        for (int k = 0; text != NULL && k < N_KIND; k++) {
            json_t *want = json_object_get(json_object_get(line, "ids"), kind_name[k]);
            if (want == NULL)
                continue;
            check_ids(s->t[k], kind_name[k], text, want, 0);
            n_checked++;
        }
    }
    assert_true(n_checked > 800);
}

static void control_spellings_give_the_reference_ids(void **state)
{
    struct golden *s = need_golden(state);
    size_t i, n_checked = 0;
    json_t *line;
    json_array_foreach(s->lines, i, line)
    {
        json_t *want = json_object_get(json_object_get(line, "control"), "smollm");
        if (want == NULL)
            continue;
        check_ids(s->t[1], "smollm with control", json_object_get(line, "text"), want, TEXT_CONTROL);
        n_checked++;
    }
    assert_true(n_checked > 5);
}

/* The vocabulary of the test merges no digits, so ids alone would not show how numbers are grouped. */
static void texts_are_split_as_by_the_reference(void **state)
{
    struct golden *s = need_golden(state);
    size_t i;
    json_t *line;
    json_array_foreach(s->lines, i, line)
    {
        json_t *text = json_object_get(line, "text");
        for (int k = 0; text != NULL && k < 4; k++) {
            json_t *want = json_object_get(json_object_get(line, "cuts"), kind_name[k]);
            const char *p = json_string_value(text);
            size_t n = json_string_length(text), at = 0, n_cut = 0;
            while (at < n) {
                size_t got = text_split_next(kind_split[k], p, n, at);
                if (got != (size_t)json_integer_value(json_array_get(want, n_cut)))
                    fail_msg("%s: cut %zu of line %zu is %zu bytes", kind_name[k], n_cut, i, got);
                n_cut++;
                at += got;
            }
            assert_int_equal(n_cut, json_array_size(want));
        }
    }
}

static void bytes_are_repaired_as_python_does(void **state)
{
    struct golden *s = need_golden(state);
    size_t i, n_checked = 0;
    json_t *line;
    json_array_foreach(s->lines, i, line)
    {
        const char *hex = json_string_value(json_object_get(line, "bytes"));
        json_t *want = json_object_get(line, "repaired");
        uint8_t raw[32];
        size_t n_raw, n;
        char *got;
        struct err e;
        if (hex == NULL)
            continue;
        sodium_hex2bin(raw, sizeof raw, hex, strlen(hex), NULL, &n_raw, NULL);
        assert_int_equal(text_utf8_repair(&e, &got, &n, (const char *)raw, n_raw), 0);
        if (n != json_string_length(want) || memcmp(got, json_string_value(want), n) != 0)
            fail_msg("%s becomes %s", hex, got);
        free(got);
        n_checked++;
    }
    assert_int_equal(n_checked, 300);
}

static void add_to_digest(crypto_generichash_state *h, const struct text_ids *v)
{
    uint32_t n = (uint32_t)v->n;
    crypto_generichash_update(h, (const uint8_t *)&n, 4);
    crypto_generichash_update(h, (const uint8_t *)v->ids, 4 * v->n);
}

static void check_digest(crypto_generichash_state *h, const char *kind, json_t *want)
{
    uint8_t bin[32];
    char hex[65];
    crypto_generichash_final(h, bin, sizeof bin);
    sodium_bin2hex(hex, sizeof hex, bin, sizeof bin);
    if (strcmp(hex, json_string_value(json_object_get(want, kind))) != 0)
        fail_msg("%s: the digest of the ids differs", kind);
}

static char *repeated(const char *unit, size_t times, size_t *n)
{
    size_t k = strlen(unit);
    char *p = malloc(k * times + 1);
    for (size_t i = 0; i < times; i++)
        memcpy(p + i * k, unit, k);
    *n = k * times;
    return p;
}

/* A mebibyte of one character. */
static void long_runs_give_the_reference_ids(void **state)
{
    struct golden *s = need_golden(state);
    size_t i, n_checked = 0;
    json_t *line;
    json_array_foreach(s->lines, i, line)
    {
        const char *unit = json_string_value(json_object_get(line, "repeat"));
        for (int k = 1; unit != NULL && k < 4; k++) {
            size_t n;
            struct err e;
            struct text_ids got = {0};
            char *p = repeated(unit, (size_t)json_integer_value(json_object_get(line, "times")), &n);
            assert_int_equal(text_encode(&e, s->t[k], &got, p, n, 0), 0);
            crypto_generichash_state h;
            crypto_generichash_init(&h, NULL, 0, 32);
            add_to_digest(&h, &got);
            check_digest(&h, kind_name[k], json_object_get(line, "digest"));
            text_ids_free(&got);
            free(p);
            n_checked++;
        }
    }
    assert_true(n_checked >= 24);
}

/* Looking up whole words, and merges: every entry. */
static void every_entry_gives_the_reference_ids(void **state)
{
    struct golden *s = need_golden(state);
    json_t *want = json_object_get(json_array_get(s->lines, json_array_size(s->lines) - 1), "entries");
    for (int k = 0; k < 4; k++) {
        crypto_generichash_state h;
        crypto_generichash_init(&h, NULL, 0, 32);
        for (uint32_t id = 0; id < text_n_token(s->t[k]); id++) {
            struct err e;
            struct text_ids got = {0};
            size_t n;
            const char *p = (const char *)text_piece(s->t[k], id, &n);
            if (n == 0)
                p = text_entry(s->t[k], id, &n);
            assert_int_equal(text_encode(&e, s->t[k], &got, p, n, 0), 0);
            add_to_digest(&h, &got);
            text_ids_free(&got);
        }
        check_digest(&h, kind_name[k], want);
    }
}

static double seconds(const struct text *t, const char *unit, size_t times)
{
    struct timespec a, b;
    struct err e;
    struct text_ids got = {0};
    size_t n;
    char *p = repeated(unit, times, &n);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_int_equal(text_encode(&e, t, &got, p, n, 0), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    text_ids_free(&got);
    free(p);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* A text 16 times as long may take 16 times as long and a little more; quadratic growth would take 256 times. The units
 * with marks test the normaliser; the last one is half of a control token, repeated. */
static void time_is_near_linear(void **state)
{
    static const char *const unit[] = {
        "a", "-", " ", "\n", "\xe6\xbc\xa2", "1", "\t\n", "'", "ab", "\xcc\x81\xcc\xa3", "\xed\x95\x9c", "<|im_"};
    struct golden *s = need_golden(state);
    for (int k = 1; k < 4; k += 2)
        for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++) {
            double small = seconds(s->t[k], unit[i], 1 << 15), large = seconds(s->t[k], unit[i], 1 << 19);
            if (large > 64 * small + 0.1)
                fail_msg("%s: '%s' takes %.3f s, 16 times as much %.3f s", kind_name[k], unit[i], small, large);
        }
}

/* Marks in descending order of class are the worst case for a sort that exchanges neighbours. */
static void many_marks_out_of_order_are_near_linear(void **state)
{
    struct golden *s = need_golden(state);
    size_t half = 1 << 18;
    char *p = malloc(4 * half);
    for (size_t i = 0; i < half; i++) {
        memcpy(p + 2 * i, "\xcc\x81", 2);
        memcpy(p + 2 * (half + i), "\xcc\xa3", 2);
    }
    struct err e;
    struct text_ids got = {0}, sorted = {0};
    clock_t begin = clock();
    assert_int_equal(text_encode(&e, s->t[3], &got, p, 4 * half, 0), 0);
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    for (size_t i = 0; i < half; i++) {
        memcpy(p + 2 * i, "\xcc\xa3", 2);
        memcpy(p + 2 * (half + i), "\xcc\x81", 2);
    }
    assert_int_equal(text_encode(&e, s->t[0], &sorted, p, 4 * half, 0), 0);
    assert_int_equal(got.n, sorted.n);
    assert_memory_equal(got.ids, sorted.ids, 4 * got.n);
    text_ids_free(&got);
    text_ids_free(&sorted);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_split_as_by_the_reference),
        cmocka_unit_test(texts_give_the_reference_ids),
        cmocka_unit_test(control_spellings_give_the_reference_ids),
        cmocka_unit_test(bytes_are_repaired_as_python_does),
        cmocka_unit_test(every_entry_gives_the_reference_ids),
        cmocka_unit_test(long_runs_give_the_reference_ids),
        cmocka_unit_test(time_is_near_linear),
        cmocka_unit_test(many_marks_out_of_order_are_near_linear),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
