/* The store is asked once a second by a thread, since its client waits for answers. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/watch_impl.h"
#include "link/session.h"
#include "link/store_client.h"

#define TIMEOUT_MS 500

struct store_watch {
    char *url;
    struct session_hub *hub;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool end, fresh;
    struct wire_kv_stat stat;
};

static void give(struct store_watch *s, const struct wire_kv_stat *stat)
{
    pthread_mutex_lock(&s->lock);
    s->stat = *stat;
    s->fresh = true;
    pthread_mutex_unlock(&s->lock);
    session_hub_wake(s->hub);
}

/* True: it is to end. */
static bool rest(struct store_watch *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(WATCH_PERIOD_NS / 1000000000);
    pthread_mutex_lock(&s->lock);
    while (!s->end && !pthread_cond_timedwait(&s->wake, &s->lock, &until))
        ;
    bool end = s->end;
    pthread_mutex_unlock(&s->lock);
    return end;
}

/* A connection on which a question failed is not asked again: its answer may still come. */
static void *ask_store(void *arg)
{
    struct store_watch *s = arg;
    struct store_client *c = NULL;
    const struct store_client_opts o = {.url = s->url, .name = "stream", .timeout_ms = TIMEOUT_MS, .no_thread = true};
    do {
        struct wire_kv_stat stat;
        struct err e;
        if (!c && store_client_open(&e, &c, &o))
            c = NULL;
        if (c && store_client_stat(&e, c, &stat)) {
            store_client_close(c);
            c = NULL;
        } else if (c) {
            give(s, &stat);
        }
    } while (!rest(s));
    store_client_close(c);
    return NULL;
}

int store_watch_open(struct err *e, struct store_watch **out, const char *url, struct session_hub *hub)
{
    struct store_watch *s = calloc(1, sizeof *s);
    pthread_condattr_t monotonic;
    sigset_t all, before;
    *out = NULL;
    if (!s || !(s->url = strdup(url))) {
        free(s);
        return err_nomem(e, "the watch of the store", sizeof *s);
    }
    s->hub = hub;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* signals are the program's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->has_thread = !pthread_create(&s->thread, NULL, ask_store, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->has_thread) {
        store_watch_close(s);
        return err_set(e, ERR_SYS, "no thread for the watch of the store");
    }
    *out = s;
    return 0;
}

void store_watch_close(struct store_watch *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->end = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s->url);
    free(s);
}

bool store_watch_take(struct store_watch *s, struct wire_kv_stat *out)
{
    pthread_mutex_lock(&s->lock);
    bool fresh = s->fresh;
    s->fresh = false;
    if (fresh)
        *out = s->stat;
    pthread_mutex_unlock(&s->lock);
    return fresh;
}
