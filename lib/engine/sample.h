/*
 * From logits to a token: penalties, bias, bans, temperature, min-p, top-k, top-p, and log-probabilities.
 * Log-probabilities are those of the model: of the logits before any of these. The same inputs give the same bits: the
 * random numbers come from a counter (seed, choice, position), sums run in fixed tiles of 1,024, ties go to the lower
 * id.
 *
 * With typical sampling the filters are top-k, typical, top-p, min-p, the order of llama.cpp, and min-p is relative to
 * the best token that is left. Typical sampling (Meister et al., arXiv:2202.00666) keeps the tokens whose surprisal -ln
 * p is nearest the entropy, as few as reach typical_p of the sum. The logarithm of the sum is in both and cancels, so
 * the distance is that of a logit from the mean logit, without a logarithm: m = Σ e·(max - x) / Σ e over the tokens
 * that are left (by rank if top-k was applied, otherwise by id), distance |(max - x) - m|, all in double with each
 * operation rounded once; the e and their weights are those of the draw, at the request's temperature. The order is
 * nearest first, on a tie the greater logit, then the lower id; their e are added in this order until the sum is at
 * least typical_p·Σ e. At least one token is kept.
 *
 * The repetition penalty applies to tokens of the prompt and the answer, presence and frequency penalties to the answer
 * only, as in vLLM. With penalty_last_n >= 0 all three apply to the newest penalty_last_n tokens of the whole sequence,
 * as in llama.cpp.
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "kernels/kernels.h"

#define SAMPLE_TOP_MAX 64
#define SAMPLE_GREEDY_BELOW 1e-3f /* temperatures below this are greedy: avoids dividing by a tiny number */

struct sample_bias {
    uint32_t id;
    float bias;
};

struct sample_params {
    uint64_t seed;
    uint32_t choice;
    float temperature;                                             /* 0: greedy */
    uint32_t top_k;                                                /* 0: off */
    float top_p, min_p;                                            /* 1, 0: off; top_p 0 keeps the best token */
    float typical_p;                                               /* 1: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    int32_t penalty_last_n;                                        /* -1: all; 0: none; N: the newest N */
    const struct sample_bias *bias;
    uint32_t n_bias;
    const uint32_t *allowed; /* n_allowed 0: all */
    uint32_t n_allowed;
    const uint32_t *bad_ids,
        *bad_lens; /* [n_bad] rows, each of at least one id: its last is not chosen after its others */
    uint32_t n_bad;
    int32_t logprobs; /* -1: none; the N best beside the chosen one, at most SAMPLE_TOP_MAX */
};

struct sample_top {
    uint32_t id;
    float logprob;
};

struct sample_result {
    uint32_t id;
    float logprob;
    uint32_t rank;                         /* place in the order of `top`, 1 is the best; 0 if logprobs is -1 */
    struct sample_top top[SAMPLE_TOP_MAX]; /* falling; ties by id */
    int32_t n_top;
};

struct sampler; /* scratch for one thread at a time */
int sampler_new(struct err *e, struct sampler **out, const struct kern_ops *k, int64_t vocab);
void sampler_free(struct sampler *s);

/*
 * Chooses a token. logits: [vocab], overwritten; ids at or past n_token (padding rows) are never chosen. prompt,
 * answer: the ids so far, for penalties. ban: n_ban ids that must not be chosen (end tokens before min_tokens).
 * position: place of the token in the sequence. ERR_NO: a logit is NaN, or no token may be chosen.
 */
int sample(struct err *e, struct sampler *s, struct sample_result *out, float *logits, int64_t n_token,
           const struct sample_params *p, const uint32_t *prompt, int64_t n_prompt, const uint32_t *answer,
           int64_t n_answer, const uint32_t *ban, int64_t n_ban, uint64_t position);

/* Log-probability and rank of `id` and the n_top best over the whole vocabulary, without choosing. logits: [vocab], not
 * changed.
 */
int sample_logprob(struct err *e, struct sampler *s, struct sample_result *out, const float *logits, uint32_t id,
                   int32_t n_top);

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). */
void sample_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

#endif
