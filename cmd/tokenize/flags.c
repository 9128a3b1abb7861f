/* The flags that may be given several times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/tokenize/tokenize.h"

static int stops(struct err *e, struct ask *a, const struct cli_list *l)
{
    if (l->n > WIRE_STOPS_MAX)
        return err_set(e, ERR_USAGE, "--stop: %zu texts, the limit is %d", l->n, WIRE_STOPS_MAX);
    a->stop = calloc(l->n + 1, sizeof *a->stop);
    if (!a->stop)
        return err_nomem(e, "stops", l->n * sizeof *a->stop);
    for (size_t i = 0; i < l->n; i++) {
        a->stop[i] = (struct wire_str){l->v[i], strlen(l->v[i])};
        if (!a->stop[i].n)
            return err_set(e, ERR_USAGE, "--stop: is empty");
    }
    a->s.stop = a->stop;
    a->s.n_stop = (uint32_t)l->n;
    return 0;
}

static int stop_ids(struct err *e, struct ask *a, const struct cli_list *l)
{
    if (l->n > WIRE_STOP_IDS_MAX)
        return err_set(e, ERR_USAGE, "--stop-id: %zu ids, the limit is %d", l->n, WIRE_STOP_IDS_MAX);
    a->stop_ids = calloc(l->n + 1, sizeof *a->stop_ids);
    if (!a->stop_ids)
        return err_nomem(e, "stop ids", l->n * sizeof *a->stop_ids);
    for (size_t i = 0; i < l->n; i++) {
        uint64_t id = 0;
        if (cli_u64(e, "--stop-id", l->v[i], &id, 0, UINT32_MAX))
            return e->code;
        a->stop_ids[i] = (uint32_t)id;
    }
    a->s.stop_ids = a->stop_ids;
    a->s.n_stop_id = (uint32_t)l->n;
    return 0;
}

static int one_bias(struct err *e, struct wire_bias *out, const char *s)
{
    const char *eq = strchr(s, '=');
    char id_text[16];
    if (!eq || (size_t)(eq - s) >= sizeof id_text)
        return err_set(e, ERR_USAGE, "--logit-bias: '%.60s' is not ID=BIAS", s);
    memcpy(id_text, s, (size_t)(eq - s));
    id_text[eq - s] = 0;
    uint64_t id = 0;
    double bias = 0;
    if (cli_u64(e, "--logit-bias", id_text, &id, 0, UINT32_MAX) ||
        cli_f64(e, "--logit-bias", eq + 1, &bias, -ASK_BIAS_ABS_MAX, ASK_BIAS_ABS_MAX))
        return e->code;
    *out = (struct wire_bias){(uint32_t)id, (float)bias};
    return 0;
}

static int biases(struct err *e, struct ask *a, const struct cli_list *l)
{
    if (l->n > WIRE_BIAS_MAX)
        return err_set(e, ERR_USAGE, "--logit-bias: %zu ids, the limit is %d", l->n, WIRE_BIAS_MAX);
    a->bias = calloc(l->n + 1, sizeof *a->bias);
    if (!a->bias)
        return err_nomem(e, "biases", l->n * sizeof *a->bias);
    for (size_t i = 0; i < l->n; i++) {
        if (one_bias(e, &a->bias[i], l->v[i]))
            return e->code;
        for (size_t k = 0; k < i; k++)
            if (a->bias[k].id == a->bias[i].id)
                return err_set(e, ERR_USAGE, "--logit-bias: id %u is there twice", a->bias[i].id);
    }
    a->s.bias = a->bias;
    a->s.n_bias = (uint32_t)l->n;
    return 0;
}

int flags_stops(struct err *e, struct ask *a, const struct cli_list *stop, const struct cli_list *stop_id,
                const struct cli_list *bias)
{
    if (stops(e, a, stop) || stop_ids(e, a, stop_id) || biases(e, a, bias))
        return e->code;
    return 0;
}
