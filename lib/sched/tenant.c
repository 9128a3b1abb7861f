/*
 * Weighted fair queueing of tenants, by start tags (SFQ: Goyal, Vin, Cheng, 1996). Virtual time is that of the request
 * placed last. A request that enters the queue gets a start tag: the virtual time, or the end of the tenant's request
 * before it if that is later. The end is the start and the cost divided by the tenant's weight. Queues are sorted by
 * these tags (queue.c), so no policy can let one tenant starve another: a tenant without waiting requests begins at the
 * virtual time, however many another one has.
 *
 * The cost is the tokens to compute, with at most ANSWER_MAX of the answer, since its length is not known. A request
 * that ends before it was placed gives its cost back. A retried or preempted one keeps its tag.
 */
#include "sched/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

#define ANSWER_MAX 1024

static double weight_of(const struct sched *s, const char *name)
{
    for (size_t i = 0; i < s->n_weight; i++)
        if (!strcmp(s->weight[i].name, name))
            return s->weight[i].weight;
    return 1;
}

int tenant_get(struct err *e, struct tenant **out, struct sched *s, struct wire_str name)
{
    size_t at;
    uint64_t hash = map_mix(wire_sum(name.p, name.n));
    struct tenant *t = map_first(&s->tenants, hash, &at);
    while (t && !str_is(name, t->name))
        t = map_next(&s->tenants, hash, &at);
    if (!t) {
        t = calloc(1, sizeof *t);
        if (!t)
            return err_nomem(e, "a tenant", sizeof *t);
        if (name.n)
            memcpy(t->name, name.p, name.n);
        t->hash = hash;
        t->weight = weight_of(s, t->name);
        int rc = map_put(e, &s->tenants, hash, t);
        if (rc) {
            free(t);
            return rc;
        }
    }
    t->n_request++;
    *out = t;
    return 0;
}

void tenant_put(struct sched *s, struct tenant *t)
{
    if (!t || --t->n_request)
        return;
    map_drop(&s->tenants, t->hash, t);
    free(t);
}

int tenant_set_weight(struct err *e, struct sched *s, const char *name, double weight)
{
    if (!(weight > 0) || strlen(name) > WIRE_NAME_BYTES_MAX)
        return err_set(e, ERR_USAGE, "setting weight:%.80s: must be above 0, for a tenant of at most %d bytes", name,
                       WIRE_NAME_BYTES_MAX);
    size_t i = 0;
    while (i < s->n_weight && strcmp(s->weight[i].name, name))
        i++;
    if (i == TENANT_WEIGHTS_MAX)
        return err_set(e, ERR_USAGE, "setting weight:%s: at most %d tenants can have a weight", name,
                       TENANT_WEIGHTS_MAX);
    int rc = vec_reserve(e, &s->weight, &s->size_weight, i + 1, sizeof *s->weight, "weights of tenants");
    if (rc)
        return rc;
    snprintf(s->weight[i].name, sizeof s->weight[i].name, "%s", name);
    s->weight[i].weight = weight;
    s->n_weight = i == s->n_weight ? i + 1 : s->n_weight;
    for (size_t k = 0; s->tenants.slot && k <= s->tenants.mask; k++) {
        struct tenant *t = s->tenants.slot[k].p;
        if (t && !strcmp(t->name, name))
            t->weight = weight;
    }
    return 0;
}

void tenant_tag(struct sched *s, struct request *r)
{
    struct tenant *t = r->tenant;
    if (r->tagged || !t)
        return;
    uint32_t answer = r->pub.max_tokens < ANSWER_MAX ? r->pub.max_tokens : ANSWER_MAX;
    r->tagged = true;
    r->start = t->finish > s->virtual_time ? t->finish : s->virtual_time;
    r->charge = ((double)r->pub.n_prompt + answer) / t->weight;
    t->finish = r->start + r->charge;
}

void tenant_placed(struct sched *s, struct request *r)
{
    r->charge = 0;
    if (r->tagged && r->start > s->virtual_time)
        s->virtual_time = r->start;
}

void tenant_refund(struct request *r)
{
    if (r->tenant)
        r->tenant->finish -= r->charge;
    r->charge = 0;
}

bool tenant_full(char *text, size_t size, const struct sched *s, const struct request *r)
{
    const struct tenant *t = r->tenant;
    double n_max = s->tenant_share * (double)s->queue_max, bytes_max = s->tenant_share * (double)s->queue_bytes;
    if ((double)t->n_queued >= n_max)
        snprintf(text, size,
                 "too many requests of this client wait: %" PRIu64 ", the limit is %.0f (settings queue_max and "
                 "tenant_share); retry later",
                 t->n_queued, n_max);
    else if ((double)t->bytes > bytes_max)
        snprintf(text, size,
                 "the requests of this client would have %" PRIu64
                 " bytes, the limit is %.0f (settings queue_bytes and "
                 "tenant_share); retry later",
                 t->bytes, bytes_max);
    else
        return false;
    return true;
}
