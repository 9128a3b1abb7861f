/*
 * Sampling: Philox against the known answers of Random123 (kat_vectors), log-probabilities against libm in double,
 * filters by sets counted by hand (typical sampling: sample_typical_test.c), frequencies by a chi-square bound,
 * penalties by a plain count. Also tiny temperatures, top_p 0, masks in a batch with greedy rows, and padding, which is
 * never chosen.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/sample_fixture.h"

static void philox(void **state)
{
    (void)state;
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        sample_philox(out, kat[i], kat[i] + 4);
        assert_memory_equal(out, kat[i] + 6, sizeof out);
    }
}

static void greedy_chooses_the_best_and_the_lowest_id(void **state)
{
    (void)state;
    draw_logits(1);
    x[700] = x[1200] = 9;
    for (int i = 0; i < 4; i++) {
        static const float t[] = {0, 1e-9f, 1e-4f, 9.9e-4f}; /* tiny temperatures are greedy */
        struct sample_params p = plain(t[i]);
        assert_int_equal(draw(&p, VOCAB, 5), 700);
    }
    struct sample_params p = plain(1);
    p.top_p = 0;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(draw(&p, VOCAB, i), 700);
    p = plain(1);
    p.top_k = 1;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(draw(&p, VOCAB, i), 700);
}

static void log_probabilities(void **state)
{
    (void)state;
    draw_logits(2);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)x[i]);
    struct err e;
    struct sample_result r;
    for (uint32_t id = 0; id < VOCAB; id += 97) {
        assert_int_equal(sample_logprob(&e, s, &r, x, id, 10), 0);
        assert_true(fabs((double)r.logprob - ((double)x[id] - log(sum))) < 3e-6);
        assert_int_equal(r.n_top, 10);
        for (int i = 0; i < 10; i++) {
            assert_true(fabs((double)r.top[i].logprob - ((double)x[r.top[i].id] - log(sum))) < 3e-6);
            if (i)
                assert_true(r.top[i].logprob < r.top[i - 1].logprob ||
                            (r.top[i].logprob == r.top[i - 1].logprob && r.top[i].id > r.top[i - 1].id));
        }
        int above = 0;
        for (int i = 0; i < VOCAB; i++)
            above += x[i] > x[r.top[9].id];
        assert_true(above <= 9);
        uint32_t ahead = 0;
        for (uint32_t i = 0; i < VOCAB; i++)
            ahead += x[i] > x[id] || (x[i] == x[id] && i < id);
        assert_int_equal(r.rank, ahead + 1);
    }
    for (uint32_t i = 0; i < 10; i++) { /* the top ids have the ranks 1, 2, 3 … */
        struct sample_result own;
        assert_int_equal(sample_logprob(&e, s, &own, x, r.top[i].id, 0), 0);
        assert_int_equal(own.rank, i + 1);
    }
}

/* The reported log-probability is that of the model, before the changes of the request. */
static void reports_logprobs_before_changes(void **state)
{
    (void)state;
    draw_logits(3);
    struct err e;
    struct sample_result plain_r, r;
    static float copy[VOCAB];
    struct sample_params p = plain(0);
    uint32_t best = draw(&p, VOCAB, 0);
    struct sample_bias bias = {17, 100};
    p.bias = &bias;
    p.n_bias = 1;
    p.logprobs = 4;
    memcpy(copy, x, sizeof x);
    assert_int_equal(sample(&e, s, &r, copy, VOCAB, &p, NULL, 0, NULL, 0, NULL, 0, 0), 0);
    assert_int_equal(r.id, 17);
    assert_int_equal(sample_logprob(&e, s, &plain_r, x, 17, 4), 0);
    assert_true(r.logprob == plain_r.logprob);
    assert_int_equal(r.top[0].id, best);
}

static void frequencies(void **state)
{
    (void)state;
    for (int i = 0; i < VOCAB; i++)
        x[i] = -100;
    const int n = 40000, ids = 6;
    for (int i = 0; i < ids; i++)
        x[300 * i] = (float)i * 0.5f;
    for (int t = 0; t < 2; t++) {
        double temperature = t ? 2.0 : 1.0, sum = 0, chi = 0;
        int count[6] = {0};
        struct sample_params p = plain((float)temperature);
        p.seed = 12345;
        for (int i = 0; i < n; i++)
            count[draw(&p, VOCAB, (uint64_t)i) / 300]++;
        for (int i = 0; i < ids; i++)
            sum += exp(i * 0.5 / temperature);
        for (int i = 0; i < ids; i++) {
            double want = n * exp(i * 0.5 / temperature) / sum;
            chi += (count[i] - want) * (count[i] - want) / want;
        }
        assert_true(chi < 20.5); /* five degrees of freedom, p = 0.001 */
    }
}

/* The ids that can be chosen, by a plain sort: min-p, then top-k, then top-p of the rest. */
static int64_t allowed(uint8_t *set, float temperature, uint32_t k, double top_p, double min_p)
{
    static int order[VOCAB];
    double w[VOCAB], max = -INFINITY, sum = 0, have = 0;
    int64_t n = 0, kept = 0;
    for (int i = 0; i < VOCAB; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < VOCAB; i++) {
        w[i] = exp(((double)x[i] - max) / (double)temperature);
        if (w[i] >= min_p && w[i] > 1e-37)
            order[n++] = i;
    }
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && x[order[j]] > x[order[j - 1]]; j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    if (k && k < n)
        n = k;
    for (int64_t i = 0; i < n; i++)
        sum += w[order[i]];
    memset(set, 0, VOCAB);
    while (kept < n && (kept == 0 || have < sum * top_p)) {
        set[order[kept]] = 1;
        have += w[order[kept++]];
    }
    return kept;
}

static void filters(void **state)
{
    (void)state;
    static const struct {
        uint32_t k;
        float top_p, min_p, t;
    } settings[] = {{5, 1, 0, 1.5f},    {0, 0.5f, 0, 1},      {0, 0.9f, 0, 0.7f},
                    {0, 1, 0.2f, 1.3f}, {30, 0.8f, 0.01f, 2}, {1999, 0.99f, 0, 1}};
    for (unsigned w = 0; w < sizeof settings / sizeof *settings; w++) {
        uint8_t set[VOCAB], seen[VOCAB] = {0};
        draw_logits(40 + w);
        for (int i = 0; i < VOCAB; i++)
            x[i] += (float)i * 1e-4f; /* no ties: the sort below does not know their rule */
        int64_t n = allowed(set, settings[w].t, settings[w].k, (double)settings[w].top_p, (double)settings[w].min_p),
                distinct = 0;
        struct sample_params p = plain(settings[w].t);
        p.top_k = settings[w].k;
        p.top_p = settings[w].top_p;
        p.min_p = settings[w].min_p;
        for (uint64_t i = 0; i < 3000; i++) {
            uint32_t id = draw(&p, VOCAB, i);
            assert_true(set[id]);
            distinct += !seen[id];
            seen[id] = 1;
        }
        assert_true(n > 12 || distinct == n); /* every id of a small set is drawn */
    }
}

static void never_chooses_padding(void **state)
{
    (void)state;
    draw_logits(5);
    for (int i = 1500; i < VOCAB; i++)
        x[i] = 30;
    struct sample_params p = plain(50);
    for (uint64_t i = 0; i < 3000; i++)
        assert_true(draw(&p, 1500, i) < 1500);
    p = plain(0);
    assert_true(draw(&p, 1500, 0) < 1500);
}

static void penalties(void **state)
{
    (void)state;
    struct err e;
    struct sample_result r;
    static float copy[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        x[i] = -5;
    x[10] = 4, x[11] = 3.5f, x[12] = 3;
    const uint32_t prompt[] = {10, 10}, answer[] = {11, 11};
    struct {
        float rep, pres, freq;
        uint32_t want;
    } settings[] = {
        {1, 0, 0, 10},       /* 4, 3.5, 3 */
        {2, 0, 0, 12},       /* 2, 1.75, 3 */
        {1.2f, 0, 0, 10},    /* 3.33, 2.9, 3 */
        {1, 5, 0, 10},       /* presence counts the answer alone: 4, -1.5, 3 */
        {1.4f, 0, 0.5f, 12}, /* 2.86, 1.5, 3 */
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct sample_params p = plain(0);
        p.repetition_penalty = settings[i].rep;
        p.presence_penalty = settings[i].pres;
        p.frequency_penalty = settings[i].freq;
        memcpy(copy, x, sizeof x);
        assert_int_equal(sample(&e, s, &r, copy, VOCAB, &p, prompt, 2, answer, 2, NULL, 0, 9), 0);
        assert_int_equal(r.id, settings[i].want);
    }
}

/* penalty_last_n counts the last tokens of prompt and answer together. The draws equal those from logits changed by
 * hand. */
static void penalties_of_the_last_n(void **state)
{
    (void)state;
    static const int32_t windows[] = {0, 1, 5, 30, 31, 47, 70, 71, 1000, INT32_MAX};
    static const float settings[][3] = {{1.3f, 0, 0}, {0.7f, 0, 0}, {1, 1.5f, 0}, {1, 0, 0.8f}, {1.2f, 1.5f, 1}};
    enum { PROMPT = 40, ALL = 71 };
    uint32_t ids[ALL];
    static float was[VOCAB], copy[VOCAB];
    struct err e;
    struct sample_result r;
    draw_logits(21);
    memcpy(was, x, sizeof x);
    for (int i = 0; i < ALL; i++)
        ids[i] = (uint32_t)(rand() % 25) * 80;
    ids[3] = ids[60] = UINT32_MAX; /* an id out of range has no effect, but counts as a token */
    int moved = 0;
    for (size_t w = 0; w < sizeof settings / sizeof *settings; w++)
        for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
            struct sample_params p = plain(1);
            p.top_k = 300;
            memcpy(x, was, sizeof x);
            for (int i = 0; i < 25; i++)
                x[80 * i] = was[80 * i] = 6 + (float)i * 0.1f;
            for (uint32_t id = 0; id < VOCAB; id++) {
                int uses = 0;
                for (int i = 0; i < ALL; i++)
                    uses += ALL - i <= windows[k] && ids[i] == id;
                if (!uses)
                    continue;
                x[id] = x[id] > 0 ? x[id] / settings[w][0] : x[id] * settings[w][0];
                x[id] -= settings[w][1] + settings[w][2] * (float)uses;
            }
            for (uint64_t i = 0; i < 40; i++) {
                uint32_t want = draw(&p, VOCAB, i);
                struct sample_params q = p;
                q.repetition_penalty = settings[w][0];
                q.presence_penalty = settings[w][1];
                q.frequency_penalty = settings[w][2];
                q.penalty_last_n = windows[k];
                memcpy(copy, was, sizeof x);
                assert_int_equal(
                    sample(&e, s, &r, copy, VOCAB, &q, ids, PROMPT, ids + PROMPT, ALL - PROMPT, NULL, 0, i), 0);
                assert_int_equal(r.id, want);
                memcpy(copy, was, sizeof x);
                q.penalty_last_n = -1;
                assert_int_equal(
                    sample(&e, s, &r, copy, VOCAB, &q, ids, PROMPT, ids + PROMPT, ALL - PROMPT, NULL, 0, i), 0);
                moved += r.id != want;
            }
        }
    assert_true(moved > 300); /* the last n differ from all */
}

static void bans_ids_and_fails_without_candidates(void **state)
{
    (void)state;
    struct err e;
    struct sample_result r;
    static float copy[VOCAB];
    draw_logits(6);
    x[3] = 20;
    uint32_t ban[] = {3, 5000};
    struct sample_params p = plain(0);
    memcpy(copy, x, sizeof x);
    assert_int_equal(sample(&e, s, &r, copy, VOCAB, &p, NULL, 0, NULL, 0, ban, 2, 0), 0);
    assert_int_not_equal(r.id, 3);
    for (int i = 0; i < VOCAB; i++)
        copy[i] = -INFINITY;
    assert_int_equal(sample(&e, s, &r, copy, VOCAB, &p, NULL, 0, NULL, 0, NULL, 0, 0), ERR_NO);
    for (int i = 0; i < VOCAB; i++)
        copy[i] = NAN;
    assert_int_equal(sample(&e, s, &r, copy, VOCAB, &p, NULL, 0, NULL, 0, NULL, 0, 0), ERR_NO);
    assert_int_equal(sample_logprob(&e, s, &r, copy, 0, 0), ERR_NO);
}

/* At any temperature a row with masked entries gives a token that is not masked, and no NaN. */
static void masks_at_extreme_temperatures(void **state)
{
    (void)state;
    for (int i = 0; i < VOCAB; i++)
        x[i] = i % 3 ? -INFINITY : (float)(i % 17);
    static const float t[] = {0, 1e-4f, 0.5f, 1e4f, 1e30f};
    for (int k = 0; k < 5; k++) {
        struct sample_params p = plain(t[k]);
        p.logprobs = 2;
        for (uint64_t i = 0; i < 200; i++)
            assert_int_equal(draw(&p, VOCAB, i) % 3, 0);
    }
}

static uint32_t draw_after(const struct sample_params *p, const uint32_t *answer, int64_t n_answer, uint64_t position)
{
    static float copy[VOCAB];
    struct err e;
    struct sample_result r;
    memcpy(copy, x, sizeof x);
    assert_int_equal(sample(&e, s, &r, copy, VOCAB, p, NULL, 0, answer, n_answer, NULL, 0, position), 0);
    return r.id;
}

/* allowed_token_ids: the same tokens as from logits that are -inf everywhere else, and all ids are the same as none. */
static void chooses_only_allowed_ids(void **state)
{
    (void)state;
    static uint32_t all[VOCAB], every_third[2 * VOCAB / 3 + 2];
    static float was[VOCAB];
    uint32_t n = 0;
    draw_logits(11);
    memcpy(was, x, sizeof x);
    for (uint32_t i = 0; i < VOCAB; i++)
        all[i] = VOCAB - 1 - i;
    for (uint32_t i = 0; i < VOCAB; i += 3)
        for (int twice = 0; twice < 2; twice++)
            every_third[n++] = i;
    static const float t[] = {0, 0.7f, 3};
    for (int k = 0; k < 3; k++) {
        struct sample_params p = plain(t[k]), q = p, r = p;
        p.top_p = q.top_p = r.top_p = 0.9f;
        q.allowed = all;
        q.n_allowed = VOCAB;
        r.allowed = every_third;
        r.n_allowed = n;
        for (uint64_t i = 0; i < 50; i++) {
            memcpy(x, was, sizeof x);
            assert_int_equal(draw(&p, VOCAB, i), draw(&q, VOCAB, i));
            uint32_t masked = draw(&r, VOCAB, i);
            assert_int_equal(masked % 3, 0);
            for (int id = 0; id < VOCAB; id++)
                x[id] = id % 3 ? -INFINITY : was[id];
            assert_int_equal(masked, draw(&p, VOCAB, i));
        }
    }
    memcpy(x, was, sizeof x);
    struct sample_params p = plain(1); /* allowed ids out of range are never chosen */
    const uint32_t past[] = {5, VOCAB - 1, UINT32_MAX};
    p.allowed = past;
    p.n_allowed = 3;
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(draw(&p, VOCAB - 1, i), 5);
    struct err e;
    struct sample_result r;
    p.allowed = past + 1;
    p.n_allowed = 2;
    assert_int_equal(sample(&e, s, &r, x, VOCAB - 1, &p, NULL, 0, NULL, 0, NULL, 0, 0), ERR_NO);
}

/* bad_words as in vLLM: the last id of a row is masked if the ids before it are the end of the answer so far. */
static void does_not_complete_bad_words(void **state)
{
    (void)state;
    draw_logits(12);
    x[100] = 20;
    x[200] = 19;
    x[300] = 18;
    const uint32_t ids[] = {100, 7, 8, 200, UINT32_MAX, 7, 300}, lens[] = {1, 3, 1, 2};
    struct sample_params p = plain(0);
    p.bad_ids = ids;
    p.bad_lens = lens;
    p.n_bad = 4;
    const uint32_t answer[] = {8, 7, 8, 7};
    assert_int_equal(draw_after(&p, answer, 0, 0), 200);     /* 100 is a row of one id */
    assert_int_equal(draw_after(&p, answer + 2, 1, 0), 200); /* the ids before it do not match */
    assert_int_equal(draw_after(&p, answer, 3, 0), 300);     /* 8 7 8, then not 200 */
    assert_int_equal(draw_after(&p, answer + 1, 2, 0), 300);
    assert_int_equal(draw_after(&p, answer, 2, 0), 200); /* 8 7 */
    x[200] = 0;
    assert_true(draw_after(&p, answer, 4, 0) != 300); /* 7, then not 300 */
    p.temperature = 2;
    for (uint64_t i = 0; i < 100; i++)
        assert_true(draw_after(&p, answer, 0, i) != 100);
}

static void counter(void **state)
{
    (void)state;
    for (int i = 0; i < VOCAB; i++)
        x[i] = 0;
    struct sample_params p = plain(1);
    p.seed = 77;
    uint32_t a = draw(&p, VOCAB, 3), same = 0;
    assert_int_equal(a, draw(&p, VOCAB, 3));
    for (uint64_t i = 0; i < 50; i++) { /* position, choice and seed each matter */
        struct sample_params q = p, r = p;
        q.choice = (uint32_t)i + 1;
        r.seed = 1000 + i;
        same += draw(&p, VOCAB, 4 + i) == a;
        same += draw(&q, VOCAB, 3) == a;
        same += draw(&r, VOCAB, 3) == a;
    }
    assert_true(same < 5);
}

static int set_up(void **state)
{
    (void)state;
    struct err e;
    const struct kern_ops *k;
    kern_thread_init();
    return kern_select(&e, &k, NULL) || sampler_new(&e, &s, k, VOCAB);
}

static int tear_down(void **state)
{
    (void)state;
    sampler_free(s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox),
        cmocka_unit_test(greedy_chooses_the_best_and_the_lowest_id),
        cmocka_unit_test(log_probabilities),
        cmocka_unit_test(reports_logprobs_before_changes),
        cmocka_unit_test(frequencies),
        cmocka_unit_test(filters),
        cmocka_unit_test(never_chooses_padding),
        cmocka_unit_test(penalties),
        cmocka_unit_test(penalties_of_the_last_n),
        cmocka_unit_test(bans_ids_and_fails_without_candidates),
        cmocka_unit_test(masks_at_extreme_temperatures),
        cmocka_unit_test(chooses_only_allowed_ids),
        cmocka_unit_test(does_not_complete_bad_words),
        cmocka_unit_test(counter),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
