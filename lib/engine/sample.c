#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

#define TILE 1024
#define LOG2E 1.44269504088896340736f

struct candidate {
    float x, e;
    uint32_t id;
};

struct sampler {
    const struct kern_ops *k;
    int64_t vocab;
    float *e;               /* [vocab] */
    float *raw;             /* [vocab] copy of the model's logits, if a request changes them */
    uint32_t *count;        /* [vocab] occurrences for the penalties, cleared after each call */
    uint8_t *seen;          /* [vocab] whether the repetition penalty applies, cleared after each call */
    struct candidate *cand; /* [vocab] */
};

int sampler_new(struct err *e, struct sampler **out, const struct kern_ops *k, int64_t vocab)
{
    struct sampler *s = calloc(1, sizeof *s);
    size_t n = (size_t)vocab;
    if (s) {
        *s = (struct sampler){k,
                              vocab,
                              malloc(n * sizeof *s->e),
                              malloc(n * sizeof *s->raw),
                              calloc(n, sizeof *s->count),
                              calloc(n, 1),
                              malloc(n * sizeof *s->cand)};
        if (s->e && s->raw && s->count && s->seen && s->cand) {
            *out = s;
            return 0;
        }
    }
    sampler_free(s);
    return err_nomem(e, "a sampler", n * 25);
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->e);
    free(s->raw);
    free(s->count);
    free(s->seen);
    free(s->cand);
    free(s);
}

void sample_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                         (uint32_t)a};
        memcpy(c, n, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

/* Uniform in [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint32_t choice, uint64_t position)
{
    uint32_t r[4], counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), choice, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    sample_philox(r, counter, key);
    return (double)(((uint64_t)r[1] << 32 | r[0]) >> 11) * 0x1p-53;
}

/* Σ exp2((x - max)·c) over fixed tiles, added ascending in double; also each term into e if not NULL. */
static double sum_exp(const struct sampler *s, float *e, const float *x, int64_t n, float max, float c)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += TILE)
        sum += (double)s->k->expsum(e ? e + i : NULL, x + i, n - i < TILE ? n - i : TILE, max, c);
    return sum;
}

/* Order of rank: greater logit first, then lower id. */
static int before(float x, uint32_t i, float y, uint32_t j)
{
    return x > y || (x == y && i < j);
}

/* The n best of x by insertion into a short sorted list. */
static int32_t best(struct sample_top *top, int32_t n, const float *x, int64_t n_x)
{
    int32_t have = 0;
    for (int64_t i = 0; i < n_x; i++) {
        if (have == n && !(x[i] > top[n - 1].logprob))
            continue;
        int32_t at = have < n ? have++ : n - 1;
        while (at > 0 && before(x[i], (uint32_t)i, top[at - 1].logprob, top[at - 1].id)) {
            top[at] = top[at - 1];
            at--;
        }
        top[at] = (struct sample_top){(uint32_t)i, x[i]};
    }
    return have;
}

static float logprob_of(float x, float max, double log_sum)
{
    return (float)((double)x - (double)max - log_sum);
}

int sample_logprob(struct err *e, struct sampler *s, struct sample_result *out, const float *logits, uint32_t id,
                   int32_t n_top)
{
    int64_t n_token = s->vocab;
    float max;
    s->k->argmax(logits, n_token, &max);
    double sum = sum_exp(s, NULL, logits, n_token, max, LOG2E);
    if (!(sum > 0) || !isfinite(sum) || !isfinite(max))
        return err_set(e, ERR_NO, "the model gave no number as a logit: the file or its numbers are damaged");
    double log_sum = model_log(sum);
    out->id = id;
    out->logprob = logprob_of(logits[id], max, log_sum);
    out->rank = 1;
    for (int64_t i = 0; i < n_token; i++)
        out->rank += (uint32_t)before(logits[i], (uint32_t)i, logits[id], id);
    out->n_top = n_top > 0 ? best(out->top, n_top > SAMPLE_TOP_MAX ? SAMPLE_TOP_MAX : n_top, logits, n_token) : 0;
    for (int32_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = logprob_of(out->top[i].logprob, max, log_sum);
    return 0;
}

static bool penalises(const struct sample_params *p)
{
    return p->penalty_last_n && (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

static void count_uses(struct sampler *s, int64_t n, const uint32_t *ids, int64_t n_id)
{
    for (int64_t i = 0; i < n_id; i++)
        if (ids[i] < n)
            s->count[ids[i]]++;
}

static void penalise(struct sampler *s, float *x, int64_t n, const struct sample_params *p, const uint32_t *prompt,
                     int64_t n_prompt, const uint32_t *answer, int64_t n_answer)
{
    if (!penalises(p))
        return;
    if (p->penalty_last_n > 0) {
        int64_t of_answer = n_answer < p->penalty_last_n ? n_answer : p->penalty_last_n;
        int64_t of_prompt = p->penalty_last_n - of_answer < n_prompt ? p->penalty_last_n - of_answer : n_prompt;
        answer += n_answer - of_answer;
        n_answer = of_answer;
        prompt += n_prompt - of_prompt;
        n_prompt = of_prompt;
        count_uses(s, n, prompt, n_prompt);
    }
    count_uses(s, n, answer, n_answer);
    for (int i = 0; i < 2; i++) {
        const uint32_t *ids = i ? answer : prompt;
        for (int64_t j = 0; j < (i ? n_answer : n_prompt); j++) {
            uint32_t id = ids[j];
            if (id >= n || s->seen[id])
                continue;
            s->seen[id] = 1;
            x[id] = x[id] > 0 ? x[id] / p->repetition_penalty : x[id] * p->repetition_penalty;
            if (s->count[id])
                x[id] -= p->presence_penalty + p->frequency_penalty * (float)s->count[id];
        }
    }
    for (int i = 0; i < 2; i++) {
        const uint32_t *ids = i ? answer : prompt;
        for (int64_t j = 0; j < (i ? n_answer : n_prompt); j++)
            if (ids[j] < n)
                s->seen[ids[j]] = 0, s->count[ids[j]] = 0;
    }
}

static int by_rank(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    return before(a->x, a->id, b->x, b->id) ? -1 : 1;
}

/*
 * Keeps in cand[0 … n) a superset of the best tokens that holds at least `k` of them (k > 0) or a share `mass` of the
 * sum: whole classes of equal exponent of e, from the top. So a filter sorts few tokens, not a vocabulary.
 */
static int64_t narrow(struct candidate *cand, int64_t n, int64_t k, double mass)
{
    int64_t count[256] = {0};
    double weight[256] = {0};
    for (int64_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, &cand[i].e, 4);
        count[b >> 23 & 255]++;
        weight[b >> 23 & 255] += (double)cand[i].e;
    }
    int low = 255;
    int64_t have = 0;
    double sum = 0;
    for (; low > 0; low--) {
        have += count[low];
        sum += weight[low];
        if (k ? have >= k : sum > mass)
            break;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, &cand[i].e, 4);
        if ((int)(b >> 23 & 255) >= low)
            cand[kept++] = cand[i];
    }
    return kept;
}

static double weigh(const struct candidate *cand, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)cand[i].e;
    return sum;
}

/* The fewest of the ranked candidates that reach `mass`, at least one. */
static int64_t nucleus(const struct candidate *c, int64_t n, double mass)
{
    double have = 0;
    int64_t keep = 0;
    while (keep < n && (keep == 0 || have < mass))
        have += (double)c[keep++].e;
    return keep;
}

/* How far a logit is below the best one: the surprisal in units of the temperature, up to a constant. */
static double below(const struct candidate *c, float max)
{
    return (double)max - (double)c->x;
}

/* Class of its distance from the mean: the exponent and 3 more bits. */
static uint32_t class_of(const struct candidate *c, float max, double mean)
{
    float far = (float)fabs(below(c, max) - mean);
    uint32_t b;
    memcpy(&b, &far, 4);
    return b >> 20;
}

/*
 * As narrow(), for the tokens nearest the mean. Keeps slightly more than `mass`, so that a sum in another order, which
 * rounds differently, loses no token.
 */
static int64_t narrow_typical(struct candidate *c, int64_t n, float max, double mean, double mass)
{
    double weight[2048] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++)
        weight[class_of(&c[i], max, mean)] += (double)c[i].e;
    uint32_t last = 0;
    while (last < 2047 && !((sum += weight[last]) > mass * (1 + 1e-9)))
        last++;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (class_of(&c[i], max, mean) <= last)
            c[kept++] = c[i];
    return kept;
}

/*
 * Typical sampling, see the header; leaves the candidates ranked. The distances of ranked candidates fall up to the
 * mean and rise after it, so the kept ones are one run, which grows from the mean to both sides.
 */
static int64_t typical(struct candidate *c, int64_t n, float max, double share, bool ranked)
{
    double sum = 0, mean = 0, have = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)c[i].e;
        mean += (double)c[i].e * below(&c[i], max);
    }
    mean /= sum;
    if (!ranked) {
        n = narrow_typical(c, n, max, mean, sum * share);
        qsort(c, (size_t)n, sizeof *c, by_rank);
    }
    int64_t hi = 0;
    while (hi < n && below(&c[hi], max) <= mean)
        hi++;
    int64_t lo = hi;
    while (hi - lo < n && (hi == lo || have < sum * share)) {
        bool up = hi == n || (lo > 0 && mean - below(&c[lo - 1], max) <= below(&c[hi], max) - mean);
        have += (double)c[up ? --lo : hi++].e;
    }
    /* The run took the higher ids of its lowest-ranked logit first; these have equal weight, so keep the lower ids. */
    int64_t first = lo, equal = lo;
    while (first > 0 && c[first - 1].x == c[lo].x)
        first--;
    while (equal < hi && c[equal].x == c[lo].x)
        equal++;
    memmove(c + lo, c + first, (size_t)(equal - lo) * sizeof *c);
    memmove(c, c + lo, (size_t)(hi - lo) * sizeof *c);
    return hi - lo;
}

/* top-k, typical, top-p, min-p in this order. */
static int64_t filter_typical(struct candidate *c, int64_t n, const struct sample_params *p, float max)
{
    bool k_on = p->top_k && p->top_k < n;
    if (k_on) {
        n = narrow(c, n, p->top_k, 0);
        qsort(c, (size_t)n, sizeof *c, by_rank);
        n = n < p->top_k ? n : p->top_k;
    }
    n = typical(c, n, max, (double)p->typical_p, k_on);
    if (p->top_p < 1)
        n = nucleus(c, n, weigh(c, n) * (double)p->top_p);
    int64_t kept = 1;
    for (int64_t i = 1; i < n; i++)
        if ((double)c[i].e >= (double)p->min_p * (double)c[0].e)
            c[kept++] = c[i];
    return kept;
}

/* Candidates that pass min-p, top-k, top-p in this order, or typical sampling. Sorted if any filter but
 * the first is on. */
static int64_t filter(struct sampler *s, const struct sample_params *p, const float *x, int64_t n_token, float max)
{
    struct candidate *c = s->cand;
    bool typical_on = p->typical_p < 1;
    float least = typical_on ? 0 : p->min_p;
    int64_t n = 0;
    for (int64_t i = 0; i < n_token; i++)
        if (s->e[i] > 0 && s->e[i] >= least) /* e of the best is 1, so e is the ratio that min-p bounds */
            c[n++] = (struct candidate){x[i], s->e[i], (uint32_t)i};
    if (typical_on)
        return filter_typical(c, n, p, max);
    bool k_on = p->top_k && p->top_k < n, p_on = p->top_p < 1;
    if (!k_on && !p_on)
        return n;
    if (k_on)
        n = narrow(c, n, p->top_k, 0);
    double sum = 0;
    if (p_on && !k_on) {
        sum = weigh(c, n);
        n = narrow(c, n, 0, sum * (double)p->top_p);
    }
    qsort(c, (size_t)n, sizeof *c, by_rank);
    if (k_on && n > p->top_k)
        n = p->top_k;
    if (!p_on)
        return n;
    if (k_on)
        sum = weigh(c, n);
    return nucleus(c, n, sum * (double)p->top_p);
}

static uint32_t draw(const struct candidate *c, int64_t n, double u)
{
    double at = u * weigh(c, n), have = 0;
    for (int64_t i = 0; i < n; i++) {
        have += (double)c[i].e;
        if (at < have)
            return c[i].id;
    }
    return c[n - 1].id;
}

/* Whether the request changes the model's logits: by bias, bans or penalties. */
static bool changes(const struct sample_params *p, int64_t n_ban)
{
    return p->n_bias || n_ban || p->n_allowed || p->n_bad || penalises(p);
}

/* Bans the last id of each row whose other ids are the newest of the answer. */
static void ban_rows(float *x, int64_t n_token, const struct sample_params *p, const uint32_t *answer, int64_t n_answer)
{
    const uint32_t *row = p->bad_ids;
    for (uint32_t i = 0; i < p->n_bad; row += p->bad_lens[i++]) {
        int64_t before_it = (int64_t)p->bad_lens[i] - 1;
        if (before_it > n_answer || row[before_it] >= n_token)
            continue;
        if (!before_it || !memcmp(answer + n_answer - before_it, row, (size_t)before_it * sizeof *row))
            x[row[before_it]] = -INFINITY;
    }
}

static void allow_only(struct sampler *s, float *x, int64_t n_token, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < n_token)
            s->e[ids[i]] = x[ids[i]];
    for (int64_t i = 0; i < n_token; i++)
        x[i] = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < n_token)
            x[ids[i]] = s->e[ids[i]];
}

static void change(struct sampler *s, float *x, int64_t n_token, const struct sample_params *p, const uint32_t *prompt,
                   int64_t n_prompt, const uint32_t *answer, int64_t n_answer, const uint32_t *ban, int64_t n_ban)
{
    penalise(s, x, n_token, p, prompt, n_prompt, answer, n_answer);
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < n_token)
            x[p->bias[i].id] += p->bias[i].bias;
    for (int64_t i = 0; i < n_ban; i++)
        if (ban[i] < n_token)
            x[ban[i]] = -INFINITY;
    ban_rows(x, n_token, p, answer, n_answer);
    if (p->n_allowed)
        allow_only(s, x, n_token, p->allowed, p->n_allowed);
}

int sample(struct err *e, struct sampler *s, struct sample_result *out, float *x, int64_t n_token,
           const struct sample_params *p, const uint32_t *prompt, int64_t n_prompt, const uint32_t *answer,
           int64_t n_answer, const uint32_t *ban, int64_t n_ban, uint64_t position)
{
    const float *raw = x;
    float max;
    out->n_top = 0;
    if (changes(p, n_ban)) {
        if (p->logprobs >= 0)
            raw = memcpy(s->raw, x, (size_t)s->vocab * sizeof *x);
        change(s, x, n_token, p, prompt, n_prompt, answer, n_answer, ban, n_ban);
    }
    int64_t id = s->k->argmax(x, n_token, &max);
    if (!isfinite(max))
        return err_set(e, ERR_NO, "no token can be chosen: all logits are masked, or one is not a number");
    if (!(p->temperature < SAMPLE_GREEDY_BELOW)) {
        sum_exp(s, s->e, x, n_token, max, (float)((double)LOG2E / (double)p->temperature));
        id = draw(s->cand, filter(s, p, x, n_token, max), uniform(p->seed, p->choice, position));
    }
    if (p->logprobs >= 0)
        return sample_logprob(e, s, out, raw, (uint32_t)id, p->logprobs);
    out->id = (uint32_t)id;
    out->logprob = 0;
    out->rank = 0;
    return 0;
}
