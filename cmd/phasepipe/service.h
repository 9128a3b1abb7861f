/*
 * Private to cmd/phasepipe: the services of a runtime directory RUN, and who looks after them.
 *
 *   RUN/lock           held by the supervisor as long as it lives
 *   RUN/state.json     what runs, replaced as a whole at each change
 *   RUN/up.sock        what ctl and down ask the supervisor, JSON in SEQPACKET messages
 *   RUN/notify.sock    where a service gives descriptors away for its next process
 *   RUN/kv.sock, sched.sock, tokenize.sock, gw-*   of the services and gateways themselves
 *   RUN/log/NAME.log   with --detach
 */
#ifndef PHASEPIPE_SERVICE_H
#define PHASEPIPE_SERVICE_H

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/cli.h"
#include "err/err.h"
#include "http/listen.h"

#define UP "phasepipe up"

#define RUN_BYTES_MAX 72 /* so that the path of a socket within fits the 107 bytes of its address */
#define WORKERS_MAX 64   /* of a pool */
#define SERVICES_MAX (4 + 2 * WORKERS_MAX)
#define FAILS_MAX 5 /* deaths in a row of what was never ready; an exit status that is permanent counts at once */
#define BACKOFF_MS_MIN 100 /* doubles */
#define BACKOFF_MS_MAX 5000
#define STEADY_MS 30000 /* a life so long begins the back-off anew */
#define SLOW_MS 10000   /* to be ready; said, since a model may take longer */
#define DRAIN_MS 40000  /* SIGTERM to SIGKILL, unless told; workers give up by themselves after 30 s */
#define QUIT_MS 300     /* the same, where all end before they were ready */
#define LOG_BYTES_MAX (4u << 20)
#define KEPT_MAX 4

/* ---- the runtime directory (run.c) ---- */

/* flag, else $PHASEPIPE_RUN, else $XDG_RUNTIME_DIR/phasepipe, else /tmp/phasepipe-UID. */
int run_name(struct err *e, char out[RUN_BYTES_MAX + 1], const char *flag);
/* Makes it where it is missing, and makes its name absolute. Refused: another's, or not for its user alone. */
int run_make(struct err *e, char out[RUN_BYTES_MAX + 1], bool *made, const char *flag);
/* The lock. ERR_NO: a supervisor lives there, its pid in the text. */
int run_lock(struct err *e, int *fd, const char *run);
/* The supervisor that holds the lock; 0: none. */
pid_t run_holder(const char *run);
/* Nobody of an earlier supervisor lives: what its workers shared, of another release perhaps, is no use. */
void run_fresh(const char *run);
/* Sockets nobody listens on, and the files of a supervisor; with `made` the directory itself where it is empty. */
void run_clean(const char *run, bool made);

/* ---- what a service writes to stderr (log.c) ---- */

struct log {
    char path[PATH_MAX]; /* "": stderr, with the name before each line */
    int fd;
    uint64_t bytes;
    uint64_t lost; /* lines that found no room since the last that did */
};
int log_open(struct err *e, struct log *l, const char *run, const char *name, bool file);
void log_close(struct log *l);
void log_line(struct log *l, const char *name, const char *p, size_t n);

/* ---- a service ---- */

enum service_state {
    SERVICE_WAITING, /* for the store */
    SERVICE_STARTING,
    SERVICE_READY,
    SERVICE_BACKING_OFF,
    SERVICE_DRAINING,
    SERVICE_EXITED,
};

/* What is run: the words are owned. `--ready-fd N` is put behind them. */
struct command {
    char path[PATH_MAX];
    char *argv[128];
    size_t n;
};
int command_add(struct err *e, struct command *c, const char *word);
void command_free(struct command *c);
const char *command_program(const struct command *c);

struct kept { /* a descriptor for the next process of the service */
    char name[64];
    int fd;
};

struct service {
    char name[32];
    const char *role;
    struct command command;
    cpu_set_t cpus;
    bool pinned;
    bool needs_store; /* starts when the store is ready */
    bool crash_only;  /* ended by SIGKILL where it is to be restarted: the next one takes over all it had */
    int leaves;       /* its turn when all end, from 0 */

    enum service_state state;
    pid_t pid;            /* 0: none */
    uint64_t born;        /* of the process, as /proc says: with the pid it is a name that nobody else gets */
    int ready_fd, err_fd; /* -1: none */
    uint64_t begun_ns;    /* of the process */
    uint64_t due_ns;      /* when to start it (WAITING, BACKING_OFF), or to kill it (DRAINING, where not all end) */
    unsigned backoff_ms, fails;
    bool ever_ready;
    bool slow; /* it was said that it is not ready yet */
    uint64_t restarts;
    struct kept kept[KEPT_MAX];
    size_t n_kept;

    struct command former; /* of a swap that is not sure yet: n is 0 where there is none */
    bool swapped;
    struct log log;
    char line[1024]; /* of its stderr, so far */
    size_t n_line;
    char last[400]; /* whole line */
};

/* Starts it (spawn.c): ready_fd, err_fd, pid, born. */
int service_spawn(struct err *e, struct service *v, const char *run);
uint64_t process_born(pid_t pid);              /* 0: there is none */
char process_letter(pid_t pid, uint64_t born); /* of /proc/PID/stat; 0: gone */
/* "exit status 1", "signal 9 (Killed)" */
void status_words(char *out, size_t n, int status);

/* ---- the plan (plan.c) ---- */

struct plan {
    const char *model, *sched, *kv_type, *disk, *cores, *engine, *run;
    const char *kv_bytes, *disk_size, *batched, *seqs;
    const char *http, *ollama, *key_file, *tls_cert, *tls_key, *origins; /* http, ollama: "off", or an address */
    struct cli_list names;
    uint64_t n_prefill, n_decode, drain_s;
    bool detach, ollama_given, access_log;
};
/* A policy: "NAME", "PATH", or either with a word behind a blank for its argument. */
int plan_sched(struct err *e, struct command *out, const struct plan *p, const char *run, const char *policy);
int plan_services(struct err *e, struct service *out, size_t *n, const struct plan *p, const char *run);

/* The files of the plan: keys and certificates are there, and shape and vocabulary of the model can be read, of which
 * only the header is looked at. What a service would refuse after it has loaded is refused here. */
int plan_check_files(struct err *e, const struct plan *p);

/* ---- where HTTP is served (up_http.c) ---- */

#define EDGE_ADDRESSES_MAX 2
struct edge {
    struct http_socket http, ollama; /* their descriptors are in `kept` of the service */
    bool bound, ollama_bound;
    char without[300];                  /* why Ollama's is not there; "": it is, or was not asked for */
    char line[EDGE_ADDRESSES_MAX][256]; /* what the server reported, for a person */
    size_t n;
};
struct super;
/* Binds the addresses of the plan, for the server to inherit. ERR_NO: one is in use. */
int edge_bind(struct err *e, struct super *s);
void edge_starts(struct super *s, struct service *v);                           /* before a process of v */
void edge_ready(struct super *s, const struct service *v, const char *message); /* v's readiness message */
void edge_announce(struct super *s);                                            /* what was reported last */
void edge_close(struct super *s);                                               /* no connection is taken any more */

/* ---- the supervisor (supervise.c) ---- */

struct client {  /* of the control socket */
    int fd;      /* -1: none */
    int service; /* it waits for this one to be ready; -1 */
    bool down;   /* it waits for the end */
};
#define CLIENTS_MAX 16

struct super {
    const struct plan *plan;
    char run[RUN_BYTES_MAX + 1];
    struct service service[SERVICES_MAX];
    size_t n;
    struct edge edge;
    int signal_fd, notify_fd, control_fd;
    struct client client[CLIENTS_MAX];
    uint64_t begun_ns;
    bool all_ready; /* it was said */
    void (*ready)(void *arg);
    void *ready_arg;
    bool ending;
    bool at_once; /* it ends before all were ready: nothing is drained, and there are no turns */
    int turn;     /* of those that leave now */
    uint64_t end_ns;
    unsigned terms;
    size_t n_killed;
    struct err failed; /* why it ends by itself */
    struct log log;
    bool changed;      /* state.json is to be written */
    bool published;    /* it was written once */
    bool unwritten;    /* it was said that it cannot be */
    uint64_t again_ns; /* not before, where it could not be */
};
int super_run(struct err *e, struct super *s);
void super_say(struct super *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* By name; a pool's lone worker goes by the name of the pool too. NULL: none. */
struct service *super_find(struct super *s, const char *name);
void super_restart(struct super *s, struct service *v);
void super_end(struct super *s, uint64_t timeout_ms);

/* ---- descriptors that services give away (keep.c) ---- */

int keep_open(struct err *e, int *fd, const char *run);
void keep_take(struct super *s); /* one message */
void keep_drop(struct service *v);

/* ---- what is asked of the supervisor (control.c) ---- */

int control_open(struct err *e, int *fd, const char *run);
void control_accept(struct super *s);
void control_take(struct super *s, struct client *c);
/* Those who wait for this service: why NULL where it is ready. */
void control_answer(struct super *s, const struct service *v, const char *why);
void control_end(struct super *s);
/* The other side: asks, and waits for the answer. ERR_NO: nobody is there, or he says no. timeout_ms -1: for ever. */
struct json_t;
int control_ask(struct err *e, const char *run, struct json_t *question, int timeout_ms);

/* ---- state.json (state.c) ---- */

int state_write(struct err *e, const struct super *s);
/* An object, owned by the caller. ERR_NO: there is none. */
int state_read(struct err *e, struct json_t **out, const char *run);
/* Ends what a supervisor that was killed left behind. */
int state_end_stale(struct err *e, size_t *n, const char *run);

/* ---- what sched and kvstore say of themselves (ask.c) ---- */

struct wire_stat;
struct wire_worker;
struct asker;
/* Both URLs may be NULL: those of RUN. */
int asker_open(struct err *e, struct asker **out, const char *run, const char *sched);
void asker_close(struct asker *a);
/* Borrowed until the next question. ERR_NO: nobody answers within 5 s. */
int asker_stat(struct err *e, struct asker *a, const struct wire_stat **stat, const struct wire_worker **w, size_t *n);
int asker_knob(struct err *e, struct asker *a, const char *name, const char *worker, double value);
struct wire_kv_stat;
int ask_store(struct err *e, struct wire_kv_stat *out, const char *run, const char *url);

#endif
