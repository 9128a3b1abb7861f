/* Limits of API keys: requests and tokens a minute by token buckets, requests in flight. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "api/keys.h"

#define NS_MINUTE 60e9
#define TINY 1e-6 /* rounding of a refill */

static void refill(struct key *k, enum key_limit limit, uint64_t now_ns)
{
    struct key_bucket *b = &k->bucket[limit];
    double most = (double)k->max[limit];
    if (!b->at_ns)
        b->level = most;
    else if (now_ns > b->at_ns)
        b->level += (double)(now_ns - b->at_ns) * most / NS_MINUTE;
    if (b->level > most)
        b->level = most;
    b->at_ns = now_ns ? now_ns : 1;
}

/* Seconds until the bucket has n. */
static double wait_s(const struct key *k, enum key_limit limit, double n)
{
    double missing = n - k->bucket[limit].level;
    return missing > 0 ? missing * 60 / (double)k->max[limit] : 0;
}

static bool refuse(struct key_refusal *no, struct key *k, enum key_limit limit, double s, const char *more)
{
    static const char *const what[] = {"requests a minute", "tokens a minute", "requests at a time"};
    k->n_refused[limit]++;
    no->limit = limit;
    no->retry_s = s > 1 ? ceil(s - TINY) : 1;
    snprintf(no->text, sizeof no->text, "rate limit of API key %s: %llu %s%s; retry in %.0f s", k->name,
             (unsigned long long)k->max[limit], what[limit], more, no->retry_s);
    return false;
}

bool key_may_begin(struct key_refusal *no, struct key *k, uint64_t now_ns)
{
    if (k->max[KEY_REQUESTS]) {
        refill(k, KEY_REQUESTS, now_ns);
        if (k->bucket[KEY_REQUESTS].level < 1 - TINY)
            return refuse(no, k, KEY_REQUESTS, wait_s(k, KEY_REQUESTS, 1), "");
    }
    if (k->max[KEY_CONCURRENT] && k->n_running >= k->max[KEY_CONCURRENT])
        return refuse(no, k, KEY_CONCURRENT, 1, "");
    if (!k->max[KEY_TOKENS])
        return true;
    refill(k, KEY_TOKENS, now_ns);
    if (k->bucket[KEY_TOKENS].level < 1 - TINY)
        return refuse(no, k, KEY_TOKENS, wait_s(k, KEY_TOKENS, 1), ", and none is left");
    return true;
}

void key_begin(struct key *k, uint64_t now_ns)
{
    k->n_running++;
    k->n_request++;
    if (!k->max[KEY_REQUESTS])
        return;
    refill(k, KEY_REQUESTS, now_ns);
    k->bucket[KEY_REQUESTS].level -= 1;
}

void key_end(struct key *k)
{
    k->n_running--;
}

bool key_charge(struct key_refusal *no, uint64_t *charged, struct key *k, uint64_t n_prompt, uint64_t n_answer,
                uint64_t now_ns)
{
    uint64_t most = k->max[KEY_TOKENS], free_of_request = most > *charged ? most - *charged : 0;
    uint64_t n = n_prompt + n_answer < free_of_request ? n_prompt + n_answer : free_of_request;
    char more[160];
    if (!n)
        return true;
    refill(k, KEY_TOKENS, now_ns);
    struct key_bucket *b = &k->bucket[KEY_TOKENS];
    if (b->level < (double)n - TINY) {
        snprintf(more, sizeof more,
                 ", %.0f are left, and this request needs %" PRIu64 " (prompt %" PRIu64 ", answer at most %" PRIu64 ")",
                 b->level > 0 ? floor(b->level) : 0, n, n_prompt, n_answer);
        return refuse(no, k, KEY_TOKENS, wait_s(k, KEY_TOKENS, (double)n), more);
    }
    *charged += n;
    b->level -= (double)n;
    return true;
}

void key_settle(struct key *k, uint64_t charged, uint64_t used)
{
    if (k->max[KEY_TOKENS])
        k->bucket[KEY_TOKENS].level += (double)charged - (double)used;
}

bool key_state(struct key_state *out, struct key *k, enum key_limit limit, uint64_t now_ns)
{
    if (!k->max[limit])
        return false;
    refill(k, limit, now_ns);
    double level = k->bucket[limit].level + TINY;
    *out = (struct key_state){.limit = k->max[limit],
                              .remaining = level > 0 ? (uint64_t)level : 0,
                              .reset_s = wait_s(k, limit, (double)k->max[limit])};
    return true;
}
