/* bench: loads a server of the OpenAI API, and measures it. */
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cmd/bench/bench.h"
#include "proc/proc.h"

static int warm_up(struct err *e, const struct opts *o, const struct server *s, struct probe *a, struct workload *w)
{
    struct run run;
    int rc = o->n_warmup ? client_run(e, &run, o, s, a, w, o->n_warmup, true) : 0;
    if (o->n_warmup)
        run_free(&run);
    return rc;
}

/* Reports the run, also if it was interrupted or requests failed. */
static int show(struct err *e, const struct result *r)
{
    const struct opts *o = r->opts;
    bool json_only = o->save && !strcmp(o->save, "-");
    int rc = json_only ? 0 : report_print(e, r);
    rc = rc ? rc : save_write(e, r);
    rc = rc ? rc : o->compare ? compare_print(e, r) : 0;
    if (!rc && r->failed)
        rc = err_set(e, ERR_NO, "%llu of %llu requests failed", (unsigned long long)r->failed,
                     (unsigned long long)r->run->n);
    return rc;
}

static int measure(struct err *e, const struct opts *o, const struct server *s, struct probe *a, struct workload *w,
                   const void *saved)
{
    struct run run = {0};
    struct result result = {0};
    uint64_t n = workload_count(w);
    n = n < o->n_prompts ? n : o->n_prompts;
    if (proc_term_count()) /* interrupted, perhaps before the first request */
        return 0;
    int rc = warm_up(e, o, s, a, w);
    if (rc || proc_term_count())
        return rc;
    rc = client_run(e, &run, o, s, a, w, n, false);
    rc = rc ? rc : result_make(e, &result, o, s, &run);
    result.saved = saved;
    rc = rc ? rc : show(e, &result);
    result_free(&result);
    run_free(&run);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct opts o;
    struct server server;
    struct probe *probe = NULL;
    struct pool pool = {0};
    struct workload *work = NULL;
    void *saved = NULL;
    int rc = opts_read(&e, &o, argc, argv);
    if (rc == CLI_DONE)
        return 0;
    if (!rc && curl_global_init(CURL_GLOBAL_DEFAULT))
        rc = err_set(&e, ERR_SYS, "libcurl failed to initialise");
    rc = rc ? rc : proc_signals(&e);
    rc = rc ? rc : o.compare ? compare_open(&e, &saved, &o) : 0;
    rc = rc ? rc : probe_open(&e, &probe, &o);
    rc = rc ? rc : probe_server(&e, &server, probe);
    rc = rc ? rc : pool_open(&e, &pool, &o, &server, probe);
    rc = rc ? rc : workload_open(&e, &work, &o, &server, probe, &pool);
    rc = rc ? rc : save_check(&e, &o, &server);
    if (!rc) {
        proc_wake_soon(true);
        rc = measure(&e, &o, &server, probe, work, saved);
    }
    workload_close(work);
    pool_close(&pool);
    probe_close(probe);
    json_decref(saved);
    opts_free(&o);
    struct err late = {0};
    if (cli_close_stdout(&late) && !rc) {
        rc = late.code;
        e = late;
    }
    return rc ? cli_fail(PROG, &e) : 0;
}
