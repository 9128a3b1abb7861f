/*
 * Typical sampling: sets counted by hand, those of llama.cpp's tests/test-sampling.cpp, and sets by the definition, of
 * surprisals and entropy from libm.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/sample_fixture.h"

/* Marks the ids that occur in this number of draws; returns how many they are. */
static int64_t draw_set(uint8_t *seen, const struct sample_params *p, int draws)
{
    int64_t n = 0;
    memset(seen, 0, VOCAB);
    for (uint64_t i = 0; i < (uint64_t)draws; i++) {
        uint32_t id = draw(p, VOCAB, i);
        n += !seen[id];
        seen[id] = 1;
    }
    return n;
}

/* Sets the logits of these probabilities from id 0 on; all others have probability 0. */
static void set_probabilities(const double *p, int n)
{
    for (int i = 0; i < VOCAB; i++)
        x[i] = i < n ? (float)log(p[i]) : -INFINITY;
}

/* Sets counted by hand; the first two are of llama.cpp. */
static void typical_sets_counted_by_hand(void **state)
{
    (void)state;
    static const struct {
        double p[8];
        int n;
        float typical_p;
        const char *kept; /* by id */
    } settings[] = {
        {{0.97, 0.01, 0.01, 0.01}, 4, 0.5f, "1000"},
        {{0.4, 0.2, 0.2, 0.2}, 4, 0.5f, "0111"},
        /* in bits: entropy 1.75, surprisals 1, 2, 3, 3, so distances 0.75, 0.25, 1.25, 1.25 */
        {{0.5, 0.25, 0.125, 0.125}, 4, 0.01f, "0100"},
        {{0.5, 0.25, 0.125, 0.125}, 4, 0.2499f, "0100"},
        {{0.5, 0.25, 0.125, 0.125}, 4, 0.2501f, "1100"},
        {{0.5, 0.25, 0.125, 0.125}, 4, 0.7501f, "1110"},
        {{0.125, 0.5, 0.125, 0.25}, 4, 0.8f, "1101"},
        {{0.125, 0.5, 0.125, 0.25}, 4, 0.9f, "1111"},
        /* one token, and tokens that are equal: the lower ids */
        {{1}, 1, 0.01f, "1"},
        {{0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125}, 8, 0.3f, "11100000"},
        {{0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125}, 8, 0.01f, "10000000"},
        /* equal ones that are more likely than typical: in nats, entropy 1.47, distances 0.27 and 2.44 */
        {{0.3, 0.02, 0.02, 0.3, 0.02, 0.02, 0.3, 0.02}, 8, 0.5f, "10010000"},
        {{0.3, 0.02, 0.02, 0.3, 0.02, 0.02, 0.3, 0.02}, 8, 0.2f, "10000000"},
        {{0.3, 0.02, 0.02, 0.3, 0.02, 0.02, 0.3, 0.02}, 8, 0.89f, "10010010"},
        {{0.3, 0.02, 0.02, 0.3, 0.02, 0.02, 0.3, 0.02}, 8, 0.93f, "11110010"},
    };
    for (size_t w = 0; w < sizeof settings / sizeof *settings; w++)
        for (uint32_t k = 0; k < 2; k++) { /* top-k of all ids that are not masked: the same set by another code path */
            uint8_t seen[VOCAB];
            struct sample_params p = plain(1);
            set_probabilities(settings[w].p, settings[w].n);
            x[VOCAB - 1] = k ? -100 : -INFINITY;
            p.typical_p = settings[w].typical_p;
            p.top_k = k ? (uint32_t)settings[w].n : 0;
            draw_set(seen, &p, 2000);
            for (int i = 0; i < VOCAB; i++)
                if (seen[i] != (i < settings[w].n && settings[w].kept[i] == '1'))
                    fail_msg("setting %zu: id %d is%s drawn", w, i, seen[i] ? "" : " not");
        }
}

static int by_key(const void *a, const void *b)
{
    double x0 = *(const double *)a, x1 = *(const double *)b;
    return (x0 > x1) - (x0 < x1);
}

struct setting {
    uint32_t k;
    float typical_p, top_p, min_p, t;
};

/* The set by the definition: probabilities, surprisals and entropy from libm; every filter sorts (key, id) again. */
static int64_t typical_set(uint8_t *set, const struct setting *w)
{
    static double key[VOCAB][2], prob[VOCAB];
    double max = -INFINITY, total = 0, entropy = 0, best = 0;
    int64_t n = VOCAB, kept = 0;
    for (int i = 0; i < VOCAB; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < VOCAB; i++) {
        key[i][0] = -(double)x[i];
        key[i][1] = i;
        prob[i] = exp(((double)x[i] - max) / (double)w->t);
    }
    qsort(key, (size_t)n, sizeof *key, by_key);
    n = w->k ? w->k : n;
    for (int64_t i = 0; i < n; i++)
        total += prob[(int)key[i][1]];
    for (int64_t i = 0; i < n; i++) {
        double *p = &prob[(int)key[i][1]];
        *p /= total;
        entropy += *p > 0 ? -*p * log(*p) : 0;
    }
    for (int64_t i = 0; i < n; i++)
        key[i][0] = fabs(-log(prob[(int)key[i][1]]) - entropy);
    qsort(key, (size_t)n, sizeof *key, by_key);
    for (total = 0; kept < n && (!kept || total < (double)w->typical_p); kept++)
        total += prob[(int)key[kept][1]];
    for (int64_t i = 0; i < kept; i++)
        key[i][0] = -prob[(int)key[i][1]];
    qsort(key, (size_t)kept, sizeof *key, by_key);
    best = -key[0][0];
    memset(set, 0, VOCAB);
    n = 0;
    double have = 0;
    for (int64_t i = 0; i < kept && (!i || have < (double)w->top_p * total); i++) {
        have -= key[i][0];
        if (-key[i][0] < (double)w->min_p * best)
            continue;
        set[(int)key[i][1]] = 1;
        n++;
    }
    return n;
}

static void typical_sets_by_definition(void **state)
{
    (void)state;
    static const struct setting settings[] = {
        {0, 0.7f, 1, 0, 1},          {0, 0.2f, 1, 0, 0.7f},   {20, 0.7f, 0.9f, 0, 0.8f}, {40, 0.5f, 1, 0.3f, 1.5f},
        {0, 0.95f, 0.5f, 0.05f, 1},  {0, 0.999f, 1, 0, 0.3f}, {5, 0.9f, 0.9f, 0, 2},     {0, 0.01f, 1, 0, 1},
        {1999, 0.6f, 0.8f, 0.5f, 1}, {1, 0.5f, 1, 0, 1},      {0, 0.3f, 0, 0, 1},        {12, 0.4f, 1, 0.9f, 1},
    };
    int64_t whole = 0, without_best = 0;
    for (unsigned w = 0; w < sizeof settings / sizeof *settings; w++)
        for (unsigned seed = 0; seed < 6; seed++) {
            uint8_t set[VOCAB], seen[VOCAB];
            draw_logits(100 + 7 * w + seed);
            for (int i = 0; i < VOCAB; i++)
                x[i] = x[i] * (seed < 3 ? 1 : 1.7f) + (float)i * 1e-4f; /* no ties, two shapes */
            int64_t n = typical_set(set, &settings[w]);
            struct sample_params p = plain(settings[w].t);
            p.top_k = settings[w].k;
            p.typical_p = settings[w].typical_p;
            p.top_p = settings[w].top_p;
            p.min_p = settings[w].min_p;
            int64_t distinct = draw_set(seen, &p, 1500);
            for (int i = 0; i < VOCAB; i++)
                if (seen[i] && !set[i])
                    fail_msg("setting %u, seed %u: id %d is not in the set of %d", w, seed, i, (int)n);
            assert_true(n > 12 || distinct == n);
            whole += distinct == n;
            p = plain(0);
            without_best += !set[draw(&p, VOCAB, 0)];
        }
    assert_true(whole >= 20 && without_best >= 10); /* the settings cover different cases */
}

/* Without typical sampling the ids are summed in order up to u·Σe (docs/arithmetic.md, section 7). */
static void typical_off_draws_by_id(void **state)
{
    (void)state;
    struct sample_params p = plain(1.5f);
    p.seed = 0x123456789abcdef0u;
    draw_logits(80);
    for (uint32_t i = 0; i < 500; i++) {
        double upto = 0, total = 0;
        uint32_t id = draw(&p, VOCAB, i), r[4];
        const uint32_t counter[4] = {i, 0, 0, 0}, key[2] = {0x9abcdef0u, 0x12345678u};
        sample_philox(r, counter, key);
        for (uint32_t k = 0; k < VOCAB; k++) {
            total += exp((double)x[k] / 1.5);
            upto = k < id ? total : upto;
        }
        double at = ldexp((double)((uint64_t)r[1] << 32 | r[0]), -64) * total, slack = total * 1e-6;
        assert_true(at > upto - slack && at < upto + exp((double)x[id] / 1.5) + slack);
    }
}

/* 1 is off, and slightly below it nothing is dropped; greedy ignores it; masks and extreme temperatures work. */
static void typical_at_limits(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 4; seed++) {
        draw_logits(60 + seed);
        struct sample_params p = plain(1.3f), q = plain(0);
        uint32_t best = draw(&q, VOCAB, 0);
        q.typical_p = 0.1f;
        assert_int_equal(draw(&q, VOCAB, seed), best);
        p.top_k = 50;
        p.min_p = seed & 1 ? 0.1f : 0;
        q = p;
        q.typical_p = 0.99999994f;
        for (uint64_t i = 0; i < 400; i++)
            assert_int_equal(draw(&p, VOCAB, i), draw(&q, VOCAB, i));
    }
    static const float t[] = {2e-3f, 0.5f, 1e4f, 1e30f};
    for (int i = 0; i < VOCAB; i++)
        x[i] = i % 3 ? -INFINITY : (float)(i % 17) * 1e30f;
    for (int k = 0; k < 8; k++) {
        struct sample_params p = plain(t[k / 2]);
        p.typical_p = k % 2 ? 1.17549435e-38f : 0.5f;
        p.logprobs = 2;
        for (uint64_t i = 0; i < 50; i++)
            assert_int_equal(draw(&p, VOCAB, i) % 3, 0);
    }
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
        cmocka_unit_test(typical_sets_counted_by_hand),
        cmocka_unit_test(typical_sets_by_definition),
        cmocka_unit_test(typical_off_draws_by_id),
        cmocka_unit_test(typical_at_limits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
