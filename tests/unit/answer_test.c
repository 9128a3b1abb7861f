/* The end of an answer: end tokens, stop ids, stop strings, limits, min_tokens, ignore_eos. Ids are of the vocabulary
 * of the default model; expected texts are written by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/answer.h"
#include "unit/text_gguf.h"
#include "unit/text_model.h"

static struct text *t;
static uint32_t eos;

struct result {
    char text[1024];
    size_t n, pushed;
    enum answer_end end;
    int stop;
};

static struct text_ids ids_of(const char *s)
{
    struct text_ids v = {0};
    struct err e;
    assert_int_equal(text_encode(&e, t, &v, s, strlen(s), 0), 0);
    return v;
}

/* Pushes the ids of `s`, then `more` (an id, or UINT32_MAX for none), until the answer ends. */
static struct result push_all(struct answer_params p, const char *s, uint32_t more)
{
    struct err e;
    struct answer *a = NULL;
    struct text_ids prompt = ids_of("Hello"), v = ids_of(s);
    struct result r = {.stop = -1};
    assert_int_equal(answer_new(&e, &a, t, &p, prompt.ids, prompt.n), 0);
    for (size_t i = 0; i < v.n + (more != UINT32_MAX) && r.end == ANSWER_OPEN; i++) {
        const char *text;
        size_t n;
        assert_int_equal(answer_push(&e, a, i < v.n ? v.ids[i] : more, &text, &n, &r.end), 0);
        assert_true(r.n + n < sizeof r.text);
        memcpy(r.text + r.n, text, n);
        r.n += n;
        r.pushed++;
    }
    r.stop = answer_stop_index(a);
    answer_free(a);
    text_ids_free(&prompt);
    text_ids_free(&v);
    return r;
}

static void assert_result(struct result r, const char *text, enum answer_end end)
{
    assert_int_equal(r.n, strlen(text));
    assert_memory_equal(r.text, text, r.n);
    assert_int_equal(r.end, end);
}

static void ends_after_max_tokens(void **state)
{
    (void)state;
    struct result r = push_all((struct answer_params){.max_tokens = 3}, " one two three four", UINT32_MAX);
    assert_result(r, " one two three", ANSWER_LENGTH);
    assert_int_equal(r.pushed, 3);
    assert_result(push_all((struct answer_params){.max_tokens = 1}, " one two", UINT32_MAX), " one", ANSWER_LENGTH);
}

static void ends_at_end_tokens(void **state)
{
    (void)state;
    assert_result(push_all((struct answer_params){.max_tokens = 99}, " one two", eos), " one two", ANSWER_STOP_EOS);
    assert_result(push_all((struct answer_params){.max_tokens = 99, .ignore_eos = true}, " one two", eos), " one two",
                  ANSWER_OPEN);
    /* the last allowed token is an end token: the reason is the end token, not the limit */
    assert_result(push_all((struct answer_params){.max_tokens = 3}, " one two", eos), " one two", ANSWER_STOP_EOS);
    assert_result(push_all((struct answer_params){.max_tokens = 99, .min_tokens = 3}, " one two", eos), " one two",
                  ANSWER_OPEN);
    assert_result(push_all((struct answer_params){.max_tokens = 99, .min_tokens = 2}, " one two", eos), " one two",
                  ANSWER_STOP_EOS);
}

static void ends_at_stop_ids(void **state)
{
    (void)state;
    struct text_ids two = ids_of(" two");
    assert_int_equal(two.n, 1);
    struct answer_params p = {.max_tokens = 99, .stop_ids = two.ids, .n_stop_id = 1, .ignore_eos = true};
    struct result r = push_all(p, " one two three", UINT32_MAX);
    assert_result(r, " one", ANSWER_STOP_ID); /* as vLLM: a stop token is in stop_reason, not in the text */
    assert_int_equal(r.pushed, 2);
    p.keep_stop = true; /* include_stop_str_in_output */
    assert_result(push_all(p, " one two three", UINT32_MAX), " one two", ANSWER_STOP_ID);
    p.min_tokens = 2;
    assert_int_equal(push_all(p, " one two three", UINT32_MAX).end, ANSWER_OPEN);
    text_ids_free(&two);
}

static void ends_before_stop_strings(void **state)
{
    (void)state;
    const char *stop[] = {"zebra", "H I"};
    const size_t len[] = {5, 3};
    struct answer_params p = {.max_tokens = 99, .stop = stop, .stop_len = len, .n_stop = 2};
    struct result r = push_all(p, " F G H I J", UINT32_MAX); /* a stop text that spans several ids */
    assert_result(r, " F G ", ANSWER_STOP_TEXT);
    assert_int_equal(r.stop, 1);
    assert_int_equal(r.pushed, 4);
    assert_result(push_all(p, " F G H", UINT32_MAX), " F G ",
                  ANSWER_OPEN); /* held back: it may be the start of a stop */
    assert_result(push_all(p, " F G H", eos), " F G H", ANSWER_STOP_EOS);
    p.max_tokens = 3;
    assert_result(push_all(p, " F G H I J", UINT32_MAX), " F G H",
                  ANSWER_LENGTH); /* text that was held back is output at the end */
    p.max_tokens = 99;
    p.min_tokens = 6;
    assert_int_equal(push_all(p, " F G H I J", UINT32_MAX).end, ANSWER_OPEN);
    r = push_all(p, " F G H I J H I K", UINT32_MAX);
    assert_result(r, " F G H I J ", ANSWER_STOP_TEXT);
}

/* include_stop_str_in_output: the stop string is output, and nothing after it; also if matching starts at min_tokens.
 */
static void keep_stop_shows_the_stop_string(void **state)
{
    (void)state;
    const char *stop[] = {"G H"};
    const size_t len[] = {3};
    struct answer_params p = {.max_tokens = 99, .keep_stop = true, .stop = stop, .stop_len = len, .n_stop = 1};
    assert_result(push_all(p, " F G Hello", UINT32_MAX), " F G H", ANSWER_STOP_TEXT);
    p.min_tokens = 4;
    assert_result(push_all(p, " F G H I J G H K", UINT32_MAX), " F G H I J G H", ANSWER_STOP_TEXT);
}

/* skip_special_tokens false: control tokens have the spelling of the file. */
static void special_text_spells_control_tokens(void **state)
{
    (void)state;
    struct answer_params p = {.max_tokens = 99, .special_text = true, .ignore_eos = true};
    assert_result(push_all(p, " one two", eos), " one two<|im_end|>", ANSWER_OPEN);
    p.ignore_eos = false;
    assert_result(push_all(p, " one two", eos), " one two", ANSWER_STOP_EOS); /* as vLLM */
    p.keep_stop = true;
    assert_result(push_all(p, " one two", eos), " one two<|im_end|>", ANSWER_STOP_EOS);
    const char *stop[] = {"|im_"};
    const size_t len[] = {4};
    p = (struct answer_params){.max_tokens = 99, .special_text = true, .ignore_eos = true};
    p.stop = stop;
    p.stop_len = len;
    p.n_stop = 1;
    assert_result(push_all(p, " one", eos), " one<", ANSWER_STOP_TEXT);
}

static void bans_end_tokens_until_min_tokens(void **state)
{
    (void)state;
    struct err e;
    struct answer *a = NULL;
    const uint32_t prompt = 5, stop = 77;
    const char *text;
    size_t n, n_text;
    enum answer_end end;
    struct answer_params p = {.max_tokens = 9, .min_tokens = 1, .stop_ids = &stop, .n_stop_id = 1};
    assert_int_equal(answer_new(&e, &a, t, &p, &prompt, 1), 0);
    const uint32_t *ban = answer_banned(a, &n);
    bool has_eos = false, has_stop = false;
    for (size_t i = 0; i < n; i++) {
        has_eos |= ban[i] == eos;
        has_stop |= ban[i] == stop;
    }
    assert_true(has_eos && has_stop);
    assert_int_equal(answer_push(&e, a, 400, &text, &n_text, &end), 0);
    answer_banned(a, &n);
    assert_int_equal(n, 0);
    answer_free(a);
}

static int set_up(void **state)
{
    (void)state;
    struct err e;
    struct gguf *g = default_model();
    int rc = text_open(&e, &t, g);
    gguf_free(g);
    return rc || !text_eos(t, &eos);
}

static int tear_down(void **state)
{
    (void)state;
    text_free(t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_after_max_tokens),
        cmocka_unit_test(ends_at_end_tokens),
        cmocka_unit_test(ends_at_stop_ids),
        cmocka_unit_test(ends_before_stop_strings),
        cmocka_unit_test(bans_end_tokens_until_min_tokens),
        cmocka_unit_test(keep_stop_shows_the_stop_string),
        cmocka_unit_test(special_text_spells_control_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
