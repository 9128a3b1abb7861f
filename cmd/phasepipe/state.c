/* state.json: the services of a runtime directory, written by its supervisor. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "cmd/phasepipe/service.h"

#define STALE_MS_EACH 2000 /* wait without a signal, after SIGTERM, after SIGKILL */

static const char *state_name(enum service_state s)
{
    static const char *const names[] = {"waiting", "starting", "ready", "backing-off", "draining", "exited"};
    return names[s];
}

static json_t *describe(const struct service *v)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:i,s:I,s:I}", "name", v->name, "program", command_program(&v->command), "role",
                     v->role, "state", state_name(v->state), "pid", (int)v->pid, "born", (json_int_t)v->born,
                     "restarts", (json_int_t)v->restarts);
}

static int write_all(struct err *e, const char *path, int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return err_sys(e, "%s", path);
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

/* An incomplete new file is removed. */
static int replace(struct err *e, const char *path, const char *fresh, const char *text)
{
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_sys(e, "%s", fresh);
    int rc = write_all(e, fresh, fd, text, strlen(text));
    rc = rc ? rc : write_all(e, fresh, fd, "\n", 1);
    if (close(fd) && !rc)
        rc = err_sys(e, "%s", fresh);
    if (!rc && rename(fresh, path))
        rc = err_sys(e, "%s", path);
    if (rc)
        unlink(fresh);
    return rc;
}

int state_write(struct err *e, const struct super *s)
{
    char path[RUN_BYTES_MAX + 32], fresh[RUN_BYTES_MAX + 32];
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(list, describe(&s->service[i]));
    json_t *o = json_pack("{s:i,s:I,s:b,s:o}", "pid", (int)getpid(), "born", (json_int_t)process_born(getpid()),
                          "ready", s->all_ready, "services", list);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return err_nomem(e, "state", 0);
    snprintf(path, sizeof path, "%s/state.json", s->run);
    snprintf(fresh, sizeof fresh, "%s/state.json.new", s->run);
    int rc = replace(e, path, fresh, text);
    free(text);
    return rc;
}

int state_read(struct err *e, json_t **out, const char *run)
{
    char path[RUN_BYTES_MAX + 32];
    json_error_t why;
    snprintf(path, sizeof path, "%s/state.json", run);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return err_set(e, ERR_NO, "nothing runs in %s (phasepipe up starts it)", run);
    if (fd < 0)
        return err_sys(e, "%s", path);
    *out = json_loadfd(fd, JSON_REJECT_DUPLICATES, &why);
    close(fd);
    if (*out && json_is_array(json_object_get(*out, "services")))
        return 0;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ERR_PROTO, "%s: not a state file of phasepipe", path);
}

/* Sends sig (0: none) to the processes of the list that exist; returns their number. */
static size_t signal_all(const json_t *list, int sig)
{
    size_t n = 0, i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        pid_t pid = (pid_t)json_integer_value(json_object_get(v, "pid"));
        if (!process_letter(pid, (uint64_t)json_integer_value(json_object_get(v, "born"))))
            continue;
        n++;
        if (sig && !kill(pid, sig))
            kill(pid, SIGCONT);
    }
    return n;
}

static bool wait_all(const json_t *list, int ms)
{
    for (int t = 0; t < ms; t += 20) {
        if (!signal_all(list, 0))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return !signal_all(list, 0);
}

/* The kernel sent each a SIGTERM when its supervisor died, so they are draining; a second SIGTERM ends them at once. */
int state_end_stale(struct err *e, size_t *n, const char *run)
{
    struct err none = {0};
    json_t *o;
    *n = 0;
    if (state_read(&none, &o, run))
        return 0; /* without a readable state no processes are known */
    const json_t *list = json_object_get(o, "services");
    static const int then[] = {SIGTERM, SIGKILL};
    *n = signal_all(list, 0);
    bool ended = wait_all(list, STALE_MS_EACH);
    for (size_t i = 0; i < 2 && !ended; i++) {
        signal_all(list, then[i]);
        ended = wait_all(list, STALE_MS_EACH);
    }
    json_decref(o);
    return ended ? 0 : err_set(e, ERR_NO, "processes of an earlier supervisor in %s do not exit", run);
}
