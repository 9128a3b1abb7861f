/* phasepipe ps lists the services; phasepipe down ends them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "cmd/phasepipe/service.h"

#define PS "phasepipe ps"
#define DOWN "phasepipe down"
#define LATE_MS 15000 /* for the supervisor beyond the timeout: it kills late services in shutdown order */

/* The state of a service, checked against its process: the supervisor may have been killed, or the process have exited.
 */
static const char *state_now(const json_t *v, bool supervised)
{
    const char *state = json_string_value(json_object_get(v, "state"));
    pid_t pid = (pid_t)json_integer_value(json_object_get(v, "pid"));
    if (!pid)
        return supervised && state ? state : "exited";
    char letter = process_letter(pid, (uint64_t)json_integer_value(json_object_get(v, "born")));
    if (!letter)
        return "exited";
    if (letter == 'T' || letter == 't')
        return "stopped";
    return !supervised ? "orphaned" : state ? state : "unknown";
}

static int show_json(struct err *e, const json_t *list, bool supervised)
{
    json_t *out = json_array(), *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        const char *state = state_now(v, supervised);
        json_t *o = json_pack("{s:O?,s:O?,s:O?,s:O?,s:s,s:O?}", "pid", json_object_get(v, "pid"), "name",
                              json_object_get(v, "name"), "program", json_object_get(v, "program"), "role",
                              json_object_get(v, "role"), "state", state, "restarts", json_object_get(v, "restarts"));
        if (o && (!strcmp(state, "exited") || !json_integer_value(json_object_get(v, "pid"))))
            json_object_set_new(o, "pid", json_null());
        json_array_append_new(out, o);
    }
    int rc = json_dumpf(out, stdout, JSON_COMPACT) || putchar('\n') == EOF ? err_sys(e, "stdout") : 0;
    json_decref(out);
    return rc;
}

static void show_table(const json_t *list, bool supervised)
{
    json_t *v;
    size_t i;
    printf("%-12s %-14s %-10s %8s %-12s %8s\n", "NAME", "PROGRAM", "ROLE", "PID", "STATE", "RESTARTS");
    json_array_foreach(list, i, v)
    {
        char pid[24], restarts[24];
        const json_t *count = json_object_get(v, "restarts");
        const char *state = state_now(v, supervised), *name = json_string_value(json_object_get(v, "name")),
                   *program = json_string_value(json_object_get(v, "program")),
                   *role = json_string_value(json_object_get(v, "role"));
        long long p = json_integer_value(json_object_get(v, "pid"));
        snprintf(pid, sizeof pid, p && strcmp(state, "exited") != 0 ? "%lld" : "-", p);
        snprintf(restarts, sizeof restarts, "%lld", (long long)json_integer_value(count));
        printf("%-12s %-14s %-10s %8s %-12s %8s\n", name ? name : "?", program ? program : "?", role ? role : "?", pid,
               state, json_is_integer(count) ? restarts : "-");
    }
}

static bool has_state(const char *run)
{
    char path[RUN_BYTES_MAX + 16];
    snprintf(path, sizeof path, "%s/state.json", run);
    return !access(path, F_OK);
}

/* *supervised: their states are those of a supervisor, or were found just now. The caller owns *list. */
static int services_of(struct err *e, json_t **list, bool *supervised, const char *run)
{
    json_t *o;
    *supervised = true;
    if (!has_state(run))
        return units_list(e, list, run);
    int rc = state_read(e, &o, run);
    if (rc)
        return rc;
    *supervised = run_holder(run) != 0;
    *list = json_incref(json_object_get(o, "services"));
    json_decref(o);
    return 0;
}

int ps(int argc, char **argv)
{
    struct err e = {0};
    const char *flag = NULL;
    bool json = false;
    char run[RUN_BYTES_MAX + 1];
    const struct cli_opt opts[] = {
        {0, "run", CLI_STR, &flag, "DIR", "runtime directory ($XDG_RUNTIME_DIR/phasepipe)", .lo = 0},
        {0, "json", CLI_FLAG, &json, NULL, "a list of {pid, name, program, role, state, restarts}", .lo = 0},
    };
    const struct cli_prog prog = {PS, "[--run DIR] [--json]", "Lists the services of a runtime directory.", opts, 2, 0};
    json_t *list = NULL;
    bool supervised;
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    r = r ? r : run_name(&e, run, flag);
    r = r ? r : services_of(&e, &list, &supervised, run);
    if (!r && json)
        r = show_json(&e, list, supervised);
    else if (!r)
        show_table(list, supervised);
    json_decref(list);
    r = r ? r : cli_close_stdout(&e);
    return r ? cli_fail(PS, &e) : 0;
}

/* ---- down ---- */

static bool wait_for_exit(pid_t pid, const char *run, int ms)
{
    for (int t = 0; t < ms && run_holder(run) == pid; t += 10)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return run_holder(run) != pid;
}

/* Kills a supervisor that hangs or is stopped, then the services that it leaves. */
static int end_by_force(struct err *e, pid_t pid, const char *run)
{
    size_t n;
    cli_warn(DOWN, "the supervisor (pid %d) does not respond: killing it", (int)pid);
    if (kill(pid, SIGKILL) && errno != ESRCH)
        return err_sys(e, "kill %d", (int)pid);
    wait_for_exit(pid, run, LATE_MS);
    int rc = state_end_stale(e, &n, run);
    if (!rc)
        run_clean(run, false);
    return rc ? rc : err_set(e, ERR_NO, "the supervisor did not respond and was killed");
}

static int end_stale(struct err *e, const char *run)
{
    size_t n = 0;
    int rc = state_end_stale(e, &n, run);
    if (!rc && n)
        cli_warn(DOWN, "%zu processes of a killed supervisor have ended", n);
    if (!rc && !n)
        cli_warn(DOWN, "nothing runs in %s", run);
    if (!rc && !access(run, F_OK)) {
        int fd;
        struct err none = {0};
        if (!run_lock(&none, &fd, run)) { /* no other supervisor can start meanwhile */
            run_clean(run, false);
            close(fd);
        }
    }
    return rc;
}

static int end(struct err *e, const char *run, uint64_t timeout_s)
{
    pid_t pid = run_holder(run);
    if (!pid)
        return end_stale(e, run);
    int ms = (int)(timeout_s * 1000);
    json_t *o = json_pack("{s:s,s:i}", "do", "down", "timeout_ms", ms);
    kill(pid, SIGCONT);
    int rc = control_ask(e, run, o, ms + LATE_MS);
    json_decref(o);
    if (rc == ERR_NO && run_holder(run) == pid && !wait_for_exit(pid, run, LATE_MS))
        return end_by_force(e, pid, run);
    /* The supervisor was killed meanwhile: one that ends normally removes its state. */
    return rc && !run_holder(run) && has_state(run) ? end_stale(e, run) : rc;
}

int down(int argc, char **argv)
{
    struct err e = {0};
    const char *flag = NULL;
    uint64_t timeout_s = DRAIN_MS / 1000;
    char run[RUN_BYTES_MAX + 1];
    const struct cli_opt opts[] = {
        {0, "run", CLI_STR, &flag, "DIR", "runtime directory ($XDG_RUNTIME_DIR/phasepipe)", .lo = 0},
        {0, "timeout", CLI_U64, &timeout_s, "S", "seconds to drain, after which services are killed (40)", .lo = 0,
         .hi = 86400},
    };
    const struct cli_prog prog = {
        DOWN, "[--run DIR] [--timeout S]", "Drains the services of a runtime directory and ends them.", opts, 2, 0};
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    r = r ? r : run_name(&e, run, flag);
    r = r ? r : end(&e, run, timeout_s);
    return r ? cli_fail(DOWN, &e) : 0;
}
