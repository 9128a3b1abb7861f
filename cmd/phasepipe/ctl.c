/* phasepipe ctl: queries and controls the services. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "cmd/phasepipe/service.h"
#include "wire/wire.h"

#define CTL "phasepipe ctl"
#define RESTART_MS 120000 /* includes the drain, and loading the model */

struct ctl {
    const char *run_flag, *sched, *kv, *peer_tls;
    char run[RUN_BYTES_MAX + 1];
    bool json, peer_plaintext;
    char **arg; /* arguments of the command */
};

static int print_json(struct err *e, json_t *o)
{
    int rc = !o                                                            ? err_nomem(e, "JSON", 0)
             : json_dumpf(o, stdout, JSON_COMPACT) || putchar('\n') == EOF ? err_sys(e, "stdout")
                                                                           : 0;
    json_decref(o);
    return rc;
}

/* ---- kv ---- */

#define NUMBER(field) .name = #field, .at = offsetof(struct wire_kv_stat, field)

static const struct {
    const char *name;
    size_t at;
} kv_numbers[] = {
    {NUMBER(total)},       {NUMBER(free)},      {NUMBER(cached)},    {NUMBER(leased)},     {NUMBER(quarantined)},
    {NUMBER(credited)},    {NUMBER(seqs)},      {NUMBER(clients)},   {NUMBER(waiting)},    {NUMBER(hit_blocks)},
    {NUMBER(miss_blocks)}, {NUMBER(published)}, {NUMBER(duplicate)}, {NUMBER(evicted)},    {NUMBER(disk_total)},
    {NUMBER(disk_used)},   {NUMBER(disk_hits)}, {NUMBER(disk_bad)},  {NUMBER(slot_bytes)}, {NUMBER(huge_bytes)},
};
#define N_KV (sizeof kv_numbers / sizeof *kv_numbers)

static uint64_t kv_number(const struct wire_kv_stat *k, size_t i)
{
    uint64_t v;
    memcpy(&v, (const char *)k + kv_numbers[i].at, sizeof v);
    return v;
}

static int ctl_kv(struct err *e, struct ctl *c)
{
    struct wire_kv_stat k;
    if (ask_store(e, &k, c->run, c->kv))
        return e->code;
    json_t *o = c->json ? json_object() : NULL;
    for (size_t i = 0; i < N_KV; i++) {
        if (o)
            json_object_set_new(o, kv_numbers[i].name, json_integer((json_int_t)kv_number(&k, i)));
        else
            printf("%-12s %20" PRIu64 "\n", kv_numbers[i].name, kv_number(&k, i));
    }
    return c->json ? print_json(e, o) : 0;
}

/* ---- sched ---- */

static json_t *text_of(struct wire_str s)
{
    return s.n ? json_stringn(s.p, s.n) : json_string("");
}

static void set(json_t *o, const char *name, uint64_t v)
{
    json_object_set_new(o, name, json_integer((json_int_t)v));
}

static json_t *worker_json(const struct wire_worker *w)
{
    json_t *o = json_object();
    json_object_set_new(o, "name", text_of(w->name));
    json_object_set_new(o, "role", text_of(w->role));
    json_object_set_new(o, "store", text_of(w->store));
    json_object_set_new(o, "draining", json_boolean(w->draining));
    set(o, "prefill", w->n_prefill);
    set(o, "decode", w->n_decode);
    set(o, "whole", w->n_whole);
    set(o, "seqs", w->seqs);
    set(o, "seqs_all", w->seqs_all);
    set(o, "tokens", w->tokens);
    set(o, "blocks", w->blocks);
    set(o, "blocks_all", w->blocks_all);
    set(o, "batch", w->batch);
    set(o, "context", w->context);
    set(o, "step_ns", w->step_ns);
    return o;
}

static json_t *sched_json(const struct wire_stat *s, const struct wire_worker *w, size_t n)
{
    json_t *o = json_object(), *ended = json_object(), *workers = json_array();
    set(ended, "stop", s->stop);
    set(ended, "length", s->length);
    set(ended, "cancelled", s->cancelled);
    set(ended, "expired", s->expired);
    set(ended, "error", s->error);
    set(ended, "refused", s->refused);
    json_object_set_new(o, "policy", text_of(s->policy));
    set(o, "submitted", s->submitted);
    json_object_set_new(o, "ended", ended);
    set(o, "running", s->running);
    set(o, "waiting", s->waiting);
    set(o, "retried", s->retried);
    set(o, "preempted", s->preempted);
    set(o, "stale", s->stale);
    set(o, "placed", s->placed);
    set(o, "gateways", s->gateways);
    set(o, "stores", s->stores);
    set(o, "tombs", s->tombs);
    set(o, "ttft_p50_ns", s->ttft_p50_ns);
    set(o, "ttft_p99_ns", s->ttft_p99_ns);
    set(o, "itl_p50_ns", s->itl_p50_ns);
    set(o, "itl_p99_ns", s->itl_p99_ns);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(workers, worker_json(&w[i]));
    json_object_set_new(o, "workers", workers);
    return o;
}

static void sched_table(const struct wire_stat *s, const struct wire_worker *w, size_t n)
{
    printf("policy %.*s: submitted %" PRIu64 ", running %" PRIu64 ", waiting %" PRIu64 ", gateways %u\n",
           (int)s->policy.n, s->policy.n ? s->policy.p : "", s->submitted, s->running, s->waiting, s->gateways);
    printf("ended: stop %" PRIu64 ", length %" PRIu64 ", cancelled %" PRIu64 ", expired %" PRIu64 ", error %" PRIu64
           ", refused %" PRIu64 "; retried %" PRIu64 ", preempted %" PRIu64 "\n",
           s->stop, s->length, s->cancelled, s->expired, s->error, s->refused, s->retried, s->preempted);
    printf("%-14s %-8s %-9s %8s %8s %13s %17s %6s\n", "WORKER", "ROLE", "STATE", "PREFILL", "DECODE", "SLOTS", "BLOCKS",
           "BATCH");
    for (size_t i = 0; i < n; i++) {
        const struct wire_worker *v = &w[i];
        char seats[32], blocks[48];
        snprintf(seats, sizeof seats, "%u/%u", v->seqs_all - (v->seqs < v->seqs_all ? v->seqs : v->seqs_all),
                 v->seqs_all);
        snprintf(blocks, sizeof blocks, "%" PRIu64 "/%" PRIu64,
                 v->blocks_all - (v->blocks < v->blocks_all ? v->blocks : v->blocks_all), v->blocks_all);
        printf("%-14.*s %-8.*s %-9s %8u %8u %13s %17s %6u\n", (int)v->name.n, v->name.n ? v->name.p : "",
               (int)v->role.n, v->role.n ? v->role.p : "", v->draining ? "draining" : "alive", v->n_prefill,
               v->n_decode + v->n_whole, seats, blocks, v->batch);
    }
}

static int ctl_sched(struct err *e, struct ctl *c)
{
    const struct wire_stat *s;
    const struct wire_worker *w;
    struct asker *a;
    size_t n;
    int rc = asker_open(e, &a, c->run, c->sched, c->peer_tls, c->peer_plaintext);
    rc = rc ? rc : asker_stat(e, a, &s, &w, &n);
    if (!rc && c->json)
        rc = print_json(e, sched_json(s, w, n));
    else if (!rc)
        sched_table(s, w, n);
    asker_close(a);
    return rc;
}

/* ---- commands ---- */

static int set_setting(struct err *e, struct ctl *c, const char *name, const char *worker, double value)
{
    struct asker *a;
    int rc = asker_open(e, &a, c->run, c->sched, c->peer_tls, c->peer_plaintext);
    rc = rc ? rc : asker_set(e, a, name, worker, value);
    asker_close(a);
    return rc;
}

static int ctl_drain(struct err *e, struct ctl *c)
{
    return set_setting(e, c, "drain", c->arg[0], 1);
}

static int ctl_undrain(struct err *e, struct ctl *c)
{
    return set_setting(e, c, "drain", c->arg[0], 0);
}

static int ctl_hand_over(struct err *e, struct ctl *c)
{
    return set_setting(e, c, "hand_over", c->arg[0], 1);
}

static int ctl_role(struct err *e, struct ctl *c)
{
    static const char *const roles[] = {"prefill", "decode", "both"}; /* values 1, 2, 3 of the setting */
    for (int i = 0; i < 3; i++)
        if (!strcmp(c->arg[1], roles[i]))
            return set_setting(e, c, "role", c->arg[0], i + 1);
    return err_set(e, ERR_USAGE, "role '%.40s': must be prefill, decode or both", c->arg[1]);
}

static int ctl_set(struct err *e, struct ctl *c)
{
    char name[WIRE_NAME_BYTES_MAX + 1];
    const char *eq = strchr(c->arg[0], '=');
    double v;
    if (!eq || eq == c->arg[0] || (size_t)(eq - c->arg[0]) >= sizeof name)
        return err_set(e, ERR_USAGE, "set %.80s: SETTING=VALUE is expected", c->arg[0]);
    memcpy(name, c->arg[0], (size_t)(eq - c->arg[0]));
    name[eq - c->arg[0]] = 0;
    int rc = cli_f64(e, name, eq + 1, &v, 0, 1e15);
    return rc ? rc : set_setting(e, c, name, NULL, v);
}

static int ask_supervisor(struct err *e, struct ctl *c, json_t *o)
{
    int rc = o ? control_ask(e, c->run, o, RESTART_MS) : err_nomem(e, "JSON", 0);
    json_decref(o);
    return rc;
}

static int ctl_restart(struct err *e, struct ctl *c)
{
    return ask_supervisor(e, c, json_pack("{s:s,s:s}", "do", "restart", "service", c->arg[0]));
}

static int ctl_sched_swap(struct err *e, struct ctl *c)
{
    return ask_supervisor(e, c, json_pack("{s:s,s:s}", "do", "sched", "policy", c->arg[0]));
}

static const struct {
    const char *name;
    size_t n_arg;
    const char *args;
    int (*run)(struct err *e, struct ctl *c);
} commands[] = {
    {"kv", 0, "", ctl_kv},
    {"sched", 0, "", ctl_sched},
    {"drain", 1, " WORKER", ctl_drain},
    {"undrain", 1, " WORKER", ctl_undrain},
    {"hand-over", 1, " WORKER", ctl_hand_over},
    {"role", 2, " WORKER prefill|decode|both", ctl_role},
    {"set", 1, " SETTING=VALUE", ctl_set},
    {"restart", 1, " SERVICE", ctl_restart},
    {"sched-swap", 1, " POLICY", ctl_sched_swap},
};
#define N_COMMAND (sizeof commands / sizeof *commands)

static int dispatch(struct err *e, struct ctl *c, size_t n_arg, char **argv)
{
    if (!n_arg)
        return err_set(e, ERR_USAGE,
                       "a command is required: kv, sched, drain, undrain, hand-over, role, set, restart or sched-swap");
    for (size_t i = 0; i < N_COMMAND; i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        if (n_arg - 1 != commands[i].n_arg)
            return err_set(e, ERR_USAGE, "%s%s", commands[i].name,
                           *commands[i].args ? commands[i].args : " takes no arguments");
        c->arg = argv + 2;
        return commands[i].run(e, c);
    }
    return err_set(e, ERR_USAGE, "unknown command '%.40s'", argv[1]);
}

int ctl(int argc, char **argv)
{
    struct err e = {0};
    struct ctl c = {0};
    const struct cli_opt opts[] = {
        {0, "run", CLI_STR, &c.run_flag, "DIR", "runtime directory ($XDG_RUNTIME_DIR/phasepipe)", .lo = 0},
        {0, "json", CLI_FLAG, &c.json, NULL, "kv and sched: an object", .lo = 0},
        {0, "sched", CLI_STR, &c.sched, "URL", "scheduler (default: that of DIR)", .lo = 0},
        {0, "peer-tls", CLI_STR, &c.peer_tls, "DIR", "credentials for a tls+tcp:// scheduler: ca.pem and tool.pem",
         .lo = 0},
        {0, "peer-plaintext", CLI_FLAG, &c.peer_plaintext, NULL, "permit a tcp:// scheduler on another host", .lo = 0},
        {0, "kv", CLI_STR, &c.kv, "URL", "kvstore (default: that of DIR)", .lo = 0},
    };
    const struct cli_prog prog = {
        CTL,
        "[--run DIR] [--json] kv | sched | drain WORKER | undrain WORKER | hand-over WORKER |\n"
        "       role WORKER prefill|decode|both | set SETTING=VALUE | restart SERVICE | sched-swap POLICY",
        "Queries and controls the services of a runtime directory.",
        opts,
        sizeof opts / sizeof *opts,
        3};
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    r = r ? r : run_name(&e, c.run, c.run_flag);
    r = r ? r : dispatch(&e, &c, n_arg, argv);
    r = r ? r : cli_close_stdout(&e);
    return r ? cli_fail(CTL, &e) : 0;
}
