/*
 * Streaming detokenising and stop strings. Expected answers are written by hand, or follow from a plain search in the
 * whole text; invalid bytes are replaced as Python's bytes.decode(errors="replace") does (results copied below).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "unit/text_gguf.h"
#include "unit/text_model.h"

static int set_up(void **state)
{
    struct gguf *g = default_model();
    struct text *t = NULL;
    struct err e;
    if (g != NULL && text_open(&e, &t, g) != 0)
        return -1;
    gguf_free(g);
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    text_free(*state);
    return 0;
}

static struct text *need_text(void **state)
{
    if (*state == NULL)
        fail_msg("no default model: scripts/get-model");
    return *state;
}

struct answer {
    char text[4096];
    size_t n;
    size_t largest; /* of the pieces returned */
    int stopped;
};

static void take(struct answer *a, const char *p, size_t n)
{
    assert_true(a->n + n < sizeof a->text);
    memcpy(a->text + a->n, p, n);
    a->n += n;
    a->text[a->n] = 0;
    if (n > a->largest)
        a->largest = n;
    char *same;
    size_t n_same;
    struct err e;
    assert_int_equal(text_utf8_repair(&e, &same, &n_same, p, n), 0);
    assert_int_equal(n_same, n); /* whole characters only */
    assert_memory_equal(same, p, n);
    free(same);
}

static struct answer run(const struct text *t, const struct text_ids *prompt, const struct text_ids *ids,
                         const char *const *stop, size_t n_stop)
{
    struct answer a = {.stopped = -1};
    struct text_out *o;
    struct err e;
    size_t len[8] = {0}, n;
    const char *p;
    for (size_t i = 0; i < n_stop; i++)
        len[i] = strlen(stop[i]);
    assert_int_equal(text_out_new(&e, &o, t, prompt->ids, prompt->n, stop, len, n_stop), 0);
    for (size_t i = 0; i < ids->n; i++) {
        text_out_push(o, ids->ids[i], &p, &n, &a.stopped);
        take(&a, p, n);
    }
    text_out_end(o, &p, &n);
    take(&a, p, n);
    text_out_free(o);
    return a;
}

/* The ids of single bytes, so that an answer can be split anywhere. */
static struct text_ids byte_ids(const struct text *t, const char *s, size_t n)
{
    struct text_ids v = {malloc((n + 1) * sizeof *v.ids), 0, n + 1};
    for (size_t i = 0; i < n; i++)
        for (uint32_t id = 0; id < text_n_token(t); id++) {
            size_t k;
            const uint8_t *p = text_piece(t, id, &k);
            if (k == 1 && p[0] == (uint8_t)s[i]) {
                v.ids[v.n++] = id;
                break;
            }
        }
    assert_int_equal(v.n, n);
    return v;
}

static struct text_ids encoded(const struct text *t, const char *s)
{
    struct text_ids v = {0};
    struct err e;
    assert_int_equal(text_encode(&e, t, &v, s, strlen(s), TEXT_CONTROL), 0);
    return v;
}

static void check(const struct text *t, struct text_ids prompt, struct text_ids ids, const char *const *stop,
                  size_t n_stop, const char *want, int want_stopped)
{
    struct answer a = run(t, &prompt, &ids, stop, n_stop);
    assert_string_equal(a.text, want);
    assert_int_equal(a.stopped, want_stopped);
    text_ids_free(&prompt);
    text_ids_free(&ids);
}

static void text_comes_back_whole(void **state)
{
    static const char s[] = "Hello, \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x8c\x8d caf\xc3\xa9\n\n  x";
    struct text *t = need_text(state);
    check(t, encoded(t, "Say it:"), encoded(t, s), NULL, 0, s, -1);
    check(t, encoded(t, "Say it:"), byte_ids(t, s, sizeof s - 1), NULL, 0, s, -1);
    check(t, encoded(t, ""), encoded(t, "a<|im_end|>b"), NULL, 0, "ab", -1);
}

/* Results of Python's b'...'.decode(errors='replace'). Bytes missing in this vocabulary (C0, C1, F1, F2, F5…) cannot be
 * generated. */
static void broken_characters_become_replacements(void **state)
{
    static const struct {
        const char *bytes, *want;
    } rows[] = {
        {"\xe6\xbc", "\xef\xbf\xbd"},
        {"\xe6\xbc"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\xf0\x9f\x8c", "\xef\xbf\xbd"},
        {"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\xf0\x9f\x8c\x8d", "\xef\xbf\xbd\xf0\x9f\x8c\x8d"},
        {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    };
    struct text *t = need_text(state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check(t, encoded(t, "x"), byte_ids(t, rows[i].bytes, strlen(rows[i].bytes)), NULL, 0, rows[i].want, -1);
        char *s;
        size_t n;
        struct err e;
        assert_int_equal(text_utf8_repair(&e, &s, &n, rows[i].bytes, strlen(rows[i].bytes)), 0);
        assert_string_equal(s, rows[i].want);
        assert_int_equal(n, strlen(rows[i].want));
        free(s);
    }
}

/* The prompt ends with three of the four bytes of a character. */
static void an_incomplete_character_of_the_prompt_is_context(void **state)
{
    static const struct {
        const char *prompt, *answer, *want;
    } rows[] = {
        {"Hello \xf0\x9f\x8c", "\x8d!", "\xf0\x9f\x8c\x8d!"},
        {"Hello \xf0", "\x9f\x8c\x8d", "\xf0\x9f\x8c\x8d"},
        {"Hello \xf0\x9f\x8c", "A", "A"},           /* the incomplete character belongs to the prompt */
        {"Hello \xf0\x9f", "\x8c", "\xef\xbf\xbd"}, /* continued by the answer, but not completed */
        {"Hello \xf0\x9f",
         "\x8c"
         "A",
         "\xef\xbf\xbd"
         "A"},
        {"Hello \xf0\x9f\x8c", "\xc3\xa9", "\xc3\xa9"},
        {"Hello \xf0\x9f\x8c", "", ""},
        {"Hello \xf0\x9f\x8c\x8d", "\x8d", "\xef\xbf\xbd"}, /* complete in the prompt */
        {"Hello \x8d", "\x8d", "\xef\xbf\xbd"},
    };
    struct text *t = need_text(state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check(t, byte_ids(t, rows[i].prompt, strlen(rows[i].prompt)),
              byte_ids(t, rows[i].answer, strlen(rows[i].answer)), NULL, 0, rows[i].want, -1);
}

static void a_stop_ends_the_answer_before_it(void **state)
{
    static const struct {
        const char *text, *stop[3], *want;
        int stopped;
    } rows[] = {
        {" G H I J", {"H I"}, " G ", 0}, /* over several ids */
        {"one two three", {"two"}, "one ", 0},
        {"one two three", {"six", "three"}, "one two ", 1},
        {"one twotwo", {"two", "one"}, "", 1},
        {"ababac!", {"abac"}, "ab", 0},
        {"aaaaaab", {"aab"}, "aaaa", 0},
        {"aab", {"b", "ab", "aab"}, "", 2},               /* complete at the same byte: the longest */
        {"abcd", {"abcd", "bc"}, "a", 1},                 /* complete first */
        {"the end is ne", {"near"}, "the end is ne", -1}, /* held back, then returned at the end */
        {"x\xc3\xa9y\xc3\xa8z", {"\xc3\xa8"}, "x\xc3\xa9y", 0},
        {"x\xc3\xa9", {"\xc3\xa8"}, "x\xc3\xa9", -1},
        {"a\n\nb", {"\n\n"}, "a", 0},
        {"abc", {""}, "abc", -1},
    };
    struct text *t = need_text(state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t n = 0;
        while (n < 3 && rows[i].stop[n] != NULL)
            n++;
        check(t, encoded(t, "p"), encoded(t, rows[i].text), rows[i].stop, n, rows[i].want, rows[i].stopped);
        check(t, encoded(t, "p"), byte_ids(t, rows[i].text, strlen(rows[i].text)), rows[i].stop, n, rows[i].want,
              rows[i].stopped);
    }
}

/* Stop strings are matched in the answer only, not across the end of the prompt. */
static void the_prompt_is_not_matched_against_stops(void **state)
{
    static const char *const stop[] = {"END"};
    struct text *t = need_text(state);
    check(t, byte_ids(t, "say EN", 6), byte_ids(t, "D. EN", 5), stop, 1, "D. EN", -1);
}

/* Only text that may start a stop string is held back; the rest is returned at once. */
static void text_is_returned_as_early_as_possible(void **state)
{
    static const char *const stop[] = {"stop"};
    static const size_t len[] = {4};
    static const char bytes[] = "xst\xc3\xa9stoq";
    static const char *const want[] = {"x", "", "", "", "st\xc3\xa9", "", "", "", "stoq"};
    struct text *t = need_text(state);
    struct text_ids v = byte_ids(t, bytes, sizeof bytes - 1);
    struct text_out *o;
    struct err e;
    assert_int_equal(text_out_new(&e, &o, t, NULL, 0, stop, len, 1), 0);
    for (size_t i = 0; i < v.n; i++) {
        const char *p;
        size_t n;
        int stopped;
        text_out_push(o, v.ids[i], &p, &n, &stopped);
        assert_int_equal(n, strlen(want[i]));
        assert_memory_equal(p, want[i], n);
        assert_int_equal(stopped, -1);
    }
    text_out_free(o);
    text_ids_free(&v);
}

static void nothing_follows_a_stop(void **state)
{
    static const char *const stop[] = {"b"};
    static const size_t len[] = {1};
    struct text *t = need_text(state);
    struct text_ids v = byte_ids(t, "abc\xc3", 4);
    struct text_out *o;
    struct err e;
    const char *p;
    size_t n;
    int stopped;
    assert_int_equal(text_out_new(&e, &o, t, NULL, 0, stop, len, 1), 0);
    for (size_t i = 0; i < 4; i++) {
        text_out_push(o, v.ids[i], &p, &n, &stopped);
        assert_int_equal(n, i == 0);
        assert_int_equal(stopped, i == 0 ? -1 : 0);
    }
    text_out_end(o, &p, &n);
    assert_int_equal(n, 0);
    text_out_free(o);
    text_ids_free(&v);
}

/* Ids without text, and ids that are not in the vocabulary, produce no text. */
static void ids_without_text_produce_nothing(void **state)
{
    struct text *t = need_text(state);
    struct text_ids prompt = {0}, v = {malloc(16), 4, 4};
    v.ids[0] = 2;
    v.ids[1] = text_n_token(t);
    v.ids[2] = 151700;
    v.ids[3] = UINT32_MAX;
    check(t, prompt, v, NULL, 0, "", -1);
}

static void a_stop_must_be_text(void **state)
{
    static const char *const stop[] = {"ok", "\xff"};
    static const size_t len[] = {2, 1};
    struct text_out *o;
    struct err e;
    assert_int_equal(text_out_new(&e, &o, need_text(state), NULL, 0, stop, len, 2), ERR_NO);
}

/* Random answers over few letters, so that stop strings nearly match often, compared with a plain search for the
 * earliest end. */
static void random_answers_stop_where_a_search_finds_it(void **state)
{
    static const char *const stop[] = {"aab", "abab", "c", "bbba"};
    struct text *t = need_text(state);
    unsigned seed = 7;
    for (int round = 0; round < 3000; round++) {
        char s[33], want[33];
        size_t n = (size_t)(rand_r(&seed) % 32), end = SIZE_MAX, n_stop = (size_t)(rand_r(&seed) % 5);
        int stopped = -1;
        for (size_t i = 0; i < n; i++)
            s[i] = "aaaabbbbbbc"[rand_r(&seed) % 11];
        s[n] = 0;
        memcpy(want, s, n + 1);
        for (size_t i = 0; i < n_stop; i++) {
            const char *at = strstr(s, stop[i]);
            size_t e = at == NULL ? SIZE_MAX : (size_t)(at - s) + strlen(stop[i]);
            if (e < end || (e == end && stopped >= 0 && strlen(stop[i]) > strlen(stop[stopped]))) {
                end = e;
                stopped = (int)i;
            }
        }
        if (stopped >= 0)
            want[end - strlen(stop[stopped])] = 0;
        check(t, encoded(t, "p"), round % 2 ? encoded(t, s) : byte_ids(t, s, n), stop, n_stop, want, stopped);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_comes_back_whole),
        cmocka_unit_test(broken_characters_become_replacements),
        cmocka_unit_test(an_incomplete_character_of_the_prompt_is_context),
        cmocka_unit_test(a_stop_ends_the_answer_before_it),
        cmocka_unit_test(the_prompt_is_not_matched_against_stops),
        cmocka_unit_test(text_is_returned_as_early_as_possible),
        cmocka_unit_test(nothing_follows_a_stop),
        cmocka_unit_test(ids_without_text_produce_nothing),
        cmocka_unit_test(a_stop_must_be_text),
        cmocka_unit_test(random_answers_stop_where_a_search_finds_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
