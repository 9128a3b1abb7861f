/* Weights of tenants: settings that each new scheduler needs again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "gateway/gateway_impl.h"

#define PREFIX "weight:"

/* What a full session does not take is not sent: the session is about to end then. */
static void send_weight(struct gateway *g, const struct gw_weight *w)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_KNOB, .knob = {.name = wire_str_of(w->setting), .value = w->value}};
    if (!g->sched_down_ns)
        (void)session_send(&e, g->sched, &f);
}

int gateway_set_weight(struct err *e, struct gateway *g, const char *tenant, float weight)
{
    size_t i = 0, n_max = WIRE_NAME_BYTES_MAX - strlen(PREFIX);
    struct gw_weight w = {.value = weight};
    if (strlen(tenant) > n_max)
        return err_set(e, ERR_USAGE, "weight of tenant %.80s: the name has %zu bytes, the limit is %zu", tenant,
                       strlen(tenant), n_max);
    snprintf(w.setting, sizeof w.setting, PREFIX "%s", tenant);
    while (i < g->n_weight && strcmp(g->weight[i].setting, w.setting))
        i++;
    int rc = vec_reserve(e, &g->weight, &g->size_weight, i + 1, sizeof w, "weights of tenants");
    if (rc)
        return rc;
    g->weight[i] = w;
    g->n_weight = i == g->n_weight ? i + 1 : g->n_weight;
    send_weight(g, &g->weight[i]);
    return 0;
}

void gw_weights_up(struct gateway *g)
{
    for (size_t i = 0; i < g->n_weight; i++)
        send_weight(g, &g->weight[i]);
}
