/* Logits of a small vocabulary, and a draw from them. Include cmocka.h before. */
#ifndef SAMPLE_FIXTURE_H
#define SAMPLE_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "engine/sample.h"

#define VOCAB 2000

static struct sampler *s;
static float x[VOCAB];

static struct sample_params plain(float temperature)
{
    return (struct sample_params){.temperature = temperature,
                                  .top_p = 1,
                                  .typical_p = 1,
                                  .repetition_penalty = 1,
                                  .penalty_last_n = -1,
                                  .logprobs = -1};
}

static void draw_logits(unsigned seed)
{
    srand(seed);
    for (int i = 0; i < VOCAB; i++)
        x[i] = (float)(rand() % 4001 - 2000) / 250.0f;
}

static uint32_t draw(const struct sample_params *p, int64_t n, uint64_t position)
{
    static float copy[VOCAB];
    struct err e;
    struct sample_result r;
    memcpy(copy, x, sizeof x);
    assert_int_equal(sample(&e, s, &r, copy, n, p, NULL, 0, NULL, 0, NULL, 0, position), 0);
    return r.id;
}

#endif
