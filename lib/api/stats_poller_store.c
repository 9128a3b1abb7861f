/* The stats poller's part for the store: a background thread requests statistics once a period, since the store's
 * client blocks. */
#include <stdlib.h>
#include <string.h>

#include "api/stats_poller_impl.h"
#include "base/job.h"
#include "base/loop.h"
#include "link/store_client.h"

#define TIMEOUT_MS 500

struct store_poller {
    char *url;
    uint64_t period_ns;
    struct loop_timer timer;
    struct job_queue *queue;
    struct job job;
    struct store_client *client; /* used by the job only; NULL */
    bool answered;
    struct wire_kv_stat answer;
    bool fresh; /* stat has not been taken yet */
    struct wire_kv_stat stat;
};

/* A connection on which a request failed is not used again: its response may still come. */
static void ask_store(void *arg)
{
    struct store_poller *s = arg;
    struct err e;
    const struct store_client_opts o = {.url = s->url, .name = "stream", .timeout_ms = TIMEOUT_MS};
    s->answered = false;
    if (!s->client && store_client_open(&e, &s->client, &o))
        s->client = NULL;
    if (!s->client)
        return;
    s->answered = !store_client_stat(&e, s->client, &s->answer);
    if (s->answered)
        return;
    store_client_close(s->client);
    s->client = NULL;
}

static void in_flight(void *arg, bool ran)
{
    struct store_poller *s = arg;
    if (ran && s->answered) {
        s->stat = s->answer;
        s->fresh = true;
    }
    loop_timer_set(&s->timer, time_now_ns() + s->period_ns);
}

static void due(void *arg)
{
    struct store_poller *s = arg;
    struct err e;
    if (job_add(&e, s->queue, &s->job)) /* at most one job exists, so the queue accepts it */
        loop_timer_set(&s->timer, time_now_ns() + s->period_ns);
}

int store_poller_open(struct err *e, struct store_poller **out, const char *url, struct loop *l, uint64_t period_ns)
{
    struct store_poller *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_nomem(e, "the stats poller", sizeof *s);
    s->period_ns = period_ns;
    s->job = (struct job){.run = ask_store, .done = in_flight, .arg = s};
    loop_timer_init(l, &s->timer, due, s);
    s->url = strdup(url);
    int rc =
        s->url ? job_queue_open(e, &s->queue, l, 0, "store requests") : err_nomem(e, "the stats poller", strlen(url));
    if (rc) {
        store_poller_close(s);
        return rc;
    }
    loop_timer_set(&s->timer, 0);
    *out = s;
    return 0;
}

void store_poller_close(struct store_poller *s)
{
    if (!s)
        return;
    job_queue_close(s->queue);
    loop_timer_stop(&s->timer);
    store_client_close(s->client);
    free(s->url);
    free(s);
}

bool store_poller_take(struct store_poller *s, struct wire_kv_stat *out)
{
    bool fresh = s->fresh;
    s->fresh = false;
    if (fresh)
        *out = s->stat;
    return fresh;
}
