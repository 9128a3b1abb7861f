/* Lists services of a runtime directory that `phasepipe up` did not start, such as systemd units: finds them by their
 * sockets, and workers by the report of the scheduler. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/socket.h"
#include "cmd/phasepipe/service.h"
#include "wire/wire.h"

#define CMDLINE_BYTES 4096

static void read_line(char *out, size_t n, pid_t pid, const char *file, size_t *size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    FILE *f = fopen(path, "re");
    *size = f ? fread(out, 1, n - 1, f) : 0;
    out[*size] = 0;
    if (f)
        fclose(f);
}

static void add(json_t *list, pid_t pid, const char *name, const char *role, const char *state)
{
    char program[32];
    size_t n;
    read_line(program, sizeof program, pid, "comm", &n);
    program[strcspn(program, "\n")] = 0;
    json_t *o = json_pack("{s:I,s:I,s:s,s:s,s:s,s:s,s:n}", "pid", (json_int_t)pid, "born",
                          (json_int_t)(pid ? process_born(pid) : 0), "name", name, "program", *program ? program : role,
                          "role", role, "state", state, "restarts");
    json_array_append_new(list, o);
}

/* Whether the command line has `--name NAME` and its program is called role. */
static bool is_worker(pid_t pid, const char *role, const char *name)
{
    char line[CMDLINE_BYTES];
    size_t n;
    read_line(line, sizeof line, pid, "cmdline", &n);
    const char *slash = strrchr(line, '/');
    bool named = false;
    for (size_t i = 0; i < n; i += strlen(line + i) + 1) {
        const char *next = i + strlen(line + i) + 1 < n ? line + i + strlen(line + i) + 1 : "";
        named |= !strcmp(line + i, "--name") && !strcmp(next, name);
    }
    return named && !strcmp(slash ? slash + 1 : line, role);
}

/* The process of a worker on this host; 0: not found, as one of another user or host. */
static pid_t worker_pid(const char *role, const char *name)
{
    pid_t found = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *i; d && !found && (i = readdir(d));)
        if (isdigit((unsigned char)*i->d_name) && is_worker((pid_t)strtol(i->d_name, NULL, 10), role, name))
            found = (pid_t)strtol(i->d_name, NULL, 10);
    if (d)
        closedir(d);
    return found;
}

static int add_workers(struct err *e, json_t *list, const char *run)
{
    const struct wire_stat *stat;
    const struct wire_worker *w;
    struct asker *a;
    size_t n = 0;
    int rc = asker_open(e, &a, run, NULL, NULL, false);
    rc = rc ? rc : asker_stat(e, a, &stat, &w, &n);
    for (size_t i = 0; i < n && !rc; i++) {
        char name[WIRE_NAME_BYTES_MAX + 1], role[WIRE_ROLE_BYTES_MAX + 1];
        snprintf(name, sizeof name, "%.*s", (int)w[i].name.n, w[i].name.p);
        snprintf(role, sizeof role, "%.*s", (int)w[i].role.n, w[i].role.p);
        add(list, worker_pid(role, name), name, role, w[i].draining ? "draining" : "ready");
    }
    asker_close(a);
    return rc;
}

static void add_gateways(json_t *list, const char *run)
{
    char path[RUN_BYTES_MAX + 300];
    DIR *d = opendir(run);
    for (struct dirent *i; d && (i = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", run, i->d_name);
        pid_t pid = strncmp(i->d_name, "gw-", 3) ? 0 : socket_listener(path);
        if (pid)
            add(list, pid, "stream", "edge", "ready");
    }
    if (d)
        closedir(d);
}

int units_list(struct err *e, json_t **out, const char *run)
{
    static const struct {
        const char *socket, *name, *role;
    } known[] = {{"kv.sock", "kvstore", "store"},
                 {"sched.sock", "sched", "scheduler"},
                 {"tokenize.sock", "tokenize", "tokenizer"}};
    char path[RUN_BYTES_MAX + 32];
    bool has_sched = false;
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        snprintf(path, sizeof path, "%s/%s", run, known[i].socket);
        pid_t pid = socket_listener(path);
        has_sched |= pid && i == 1;
        if (pid)
            add(list, pid, known[i].name, known[i].role, "ready");
    }
    add_gateways(list, run);
    int rc = has_sched ? add_workers(e, list, run) : 0;
    if (!rc && !json_array_size(list))
        rc = err_set(e, ERR_NO, "nothing runs in %s (phasepipe up starts it)", run);
    if (rc)
        json_decref(list);
    else
        *out = list;
    return rc;
}
