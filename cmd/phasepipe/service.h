/*
 * Private to cmd/phasepipe: the services of a runtime directory RUN, and their supervisor.
 *
 *   RUN/lock           held by the supervisor while it runs
 *   RUN/state.json     the services and their states, replaced at each change
 *   RUN/up.sock        requests of ctl and down to the supervisor, JSON in SEQPACKET messages
 *   RUN/notify.sock    descriptors that a service stores for its next process
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

#define RUN_BYTES_MAX 72 /* so that socket paths in the directory fit the 107 bytes of an address */
#define WORKERS_MAX 64   /* per pool */
#define SERVICES_MAX (4 + 2 * WORKERS_MAX)
#define FAILS_MAX 5 /* consecutive exits of a service that was never ready; a permanent exit status fails at once */
#define BACKOFF_MS_MIN 100 /* doubles */
#define BACKOFF_MS_MAX 5000
#define STEADY_MS 30000 /* an uptime of this length resets the back-off */
#define SLOW_MS 10000   /* starts that take longer are logged, since a large model may */
#define DRAIN_MS 40000  /* default time from SIGTERM to SIGKILL; workers stop draining after 30 s */
#define WATCHDOG_S 10   /* default of --watchdog-seconds */
#define QUIT_MS 300     /* the same, if the services end before all are ready */
#define LOG_BYTES_MAX (4u << 20)
#define KEPT_MAX 4

/* ---- the runtime directory (run.c) ---- */

/* The flag, or $PHASEPIPE_RUN, or $XDG_RUNTIME_DIR/phasepipe, or /tmp/phasepipe-UID. */
int run_name(struct err *e, char out[RUN_BYTES_MAX + 1], const char *flag);
/* Creates it if it is missing; out: its absolute name. ERR_NO: another user owns it, or others can read it. */
int run_make(struct err *e, char out[RUN_BYTES_MAX + 1], bool *made, const char *flag);
/* Takes the lock. ERR_NO: another supervisor has it; the text has its pid. */
int run_lock(struct err *e, int *fd, const char *run);
/* The supervisor that holds the lock; 0: none. */
pid_t run_holder(const char *run);
/* Removes the file that workers of an earlier supervisor shared: it may be of another release. Call it after they
 * ended. */
void run_fresh(const char *run);
/* Removes sockets without a listener and the files of a supervisor; with `made` also the directory, if it is empty. */
void run_clean(const char *run, bool made);

/* ---- logs: stderr of the services (log.c) ---- */

struct log {
    char path[PATH_MAX]; /* "": stderr, each line after the name of the service */
    int fd;
    uint64_t bytes;
    uint64_t lost; /* lines that could not be written since the last that was */
};
int log_open(struct err *e, struct log *l, const char *run, const char *name, bool file);
void log_close(struct log *l);
void log_line(struct log *l, const char *name, const char *p, size_t n);

/* ---- a service ---- */

enum service_state {
    SERVICE_WAITING, /* until the store is ready */
    SERVICE_STARTING,
    SERVICE_READY,
    SERVICE_BACKING_OFF,
    SERVICE_DRAINING,
    SERVICE_EXITED,
};

/* A command line: the words are owned. service_spawn appends `--ready-fd N`. */
struct command {
    char path[PATH_MAX];
    char *argv[128];
    size_t n;
};
int command_add(struct err *e, struct command *c, const char *word);
void command_free(struct command *c);
const char *command_program(const struct command *c);

struct kept { /* a descriptor that the next process of the service inherits */
    char name[64];
    int fd;
};

struct service {
    char name[32];
    const char *role;
    struct command command;
    cpu_set_t cpus;
    bool pinned;
    bool needs_store;   /* starts when the store is ready */
    bool crash_only;    /* restarted by SIGKILL: the next process adopts its state */
    int shutdown_order; /* position in a shutdown, from 0 */

    enum service_state state;
    pid_t pid;            /* 0: none */
    uint64_t born;        /* start time in /proc/PID/stat: identifies the process together with the pid */
    int ready_fd, err_fd; /* -1: none */
    uint64_t begun_ns;    /* of the process */
    uint64_t watchdog_ns; /* a service that is ready and has not reported for so long is killed; 0: never */
    uint64_t alive_ns;    /* its last report (WATCHDOG=1); 0: none, or it was killed: the watchdog does not count */
    uint64_t due_ns;      /* when to start it (WAITING, BACKING_OFF), or to kill it (DRAINING in a restart) */
    unsigned backoff_ms, fails;
    bool ever_ready;
    bool slow; /* the slow start was logged */
    uint64_t restarts;
    struct kept kept[KEPT_MAX];
    size_t n_kept;

    struct command former; /* the previous command while the new policy of a swap starts; n 0: no swap */
    bool swapped;
    struct log log;
    char line[1024]; /* incomplete line of its stderr */
    size_t n_line;
    char last[400]; /* last complete line */
};

/* Starts a process (spawn.c): sets ready_fd, err_fd, pid, born. */
int service_spawn(struct err *e, struct service *v, const char *run);
uint64_t process_born(pid_t pid);              /* 0: no such process */
char process_letter(pid_t pid, uint64_t born); /* its state in /proc/PID/stat; 0: no such process */
/* "exit status 1", "signal 9 (Killed)" */
void status_words(char *out, size_t n, int status);

/* ---- the plan (plan.c) ---- */

/* Options of stream that are passed to it as they are. */
#define PLAN_HTTP_OPTIONS 10
struct plan_http_option {
    const char *name, *arg, *help;
};
extern const struct plan_http_option plan_http_option[PLAN_HTTP_OPTIONS];

struct plan {
    const char *model, *sched, *kv_type, *disk, *cores, *engine, *run;
    const char *kv_bytes, *verify, *disk_size, *batched, *seqs;
    const char *http, *ollama, *key_file, *tls_cert, *tls_key, *origins; /* http, ollama: "off", or an address */
    const char *http_option[PLAN_HTTP_OPTIONS]; /* values for plan_http_option[]; NULL: not given */
    struct cli_list names;
    uint64_t n_prefill, n_decode, drain_s, watchdog_s;
    bool detach, ollama_given, access_log, any_policy, shared_cache, metrics_by_key, verify_weights;
};
/* policy: "NAME" or "PATH", optionally followed by a space and one argument. */
int plan_sched(struct err *e, struct command *out, const struct plan *p, const char *run, const char *policy);
/* The processors of the i-th prefill or decode worker, as "0,1"; NULL: it has none of its own. */
#define PLAN_CORES_BYTES 5120
const char *plan_cores(char *out, size_t n, const struct plan *p, bool prefill, uint64_t i);
int plan_services(struct err *e, struct service *out, size_t *n, const struct plan *p, const char *run);

/* Checks that keys and certificates can be read, and the header of the model with its shape and vocabulary, so that
 * errors are reported before services load the model. */
int plan_check_files(struct err *e, const struct plan *p);

/* ---- the HTTP addresses (up_http.c) ---- */

#define HTTP_ADDRESSES_MAX 2
struct http_front {
    struct http_socket http, ollama; /* their descriptors are in `kept` of the service */
    bool bound, ollama_bound;
    char without[300];                  /* why the Ollama API is not served; "": it is, or is off */
    char line[HTTP_ADDRESSES_MAX][256]; /* the addresses that the server reported, as log lines */
    size_t n;
};
struct super;
/* Binds the addresses of the plan; the server inherits the sockets. ERR_NO: one is in use. */
int http_front_bind(struct err *e, struct super *s);
void http_front_starts(struct super *s, struct service *v); /* called before a process of v starts */
void http_front_ready(struct super *s, const struct service *v,
                      const char *message); /* with the readiness message of v */
void http_front_announce(struct super *s);  /* logs the addresses */
void http_front_close(struct super *s);     /* stops accepting connections */

/* ---- the supervisor (supervise.c) ---- */

struct client {  /* a connection of the control socket */
    int fd;      /* -1: none */
    int service; /* service that it waits for; -1: none */
    bool down;   /* it waits for the shutdown */
};
#define CLIENTS_MAX 16

struct super {
    const struct plan *plan;
    char run[RUN_BYTES_MAX + 1];
    struct service service[SERVICES_MAX];
    size_t n;
    struct http_front http;
    int signal_fd, notify_fd, control_fd;
    struct client client[CLIENTS_MAX];
    uint64_t begun_ns;
    bool all_ready; /* it was logged */
    void (*ready)(void *arg);
    void *ready_arg;
    bool ending;
    bool at_once; /* shutdown before all services are ready: all services at once, without draining */
    int turn;     /* shutdown_order of the services that are ending */
    uint64_t end_ns;
    unsigned terms;
    size_t n_killed;
    struct err failed; /* the reason of a shutdown without a request */
    struct log log;
    bool changed;      /* state.json is to be written */
    bool published;    /* it was written at least once */
    bool unwritten;    /* the failed write was logged */
    uint64_t turn_ns;  /* start of the last turn of its loop */
    uint64_t retry_ns; /* earliest next attempt after a failed write */
};
int super_run(struct err *e, struct super *s);
void super_log(struct super *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* By name; the only worker of a pool also by the name of the pool. NULL: none. */
struct service *super_find(struct super *s, const char *name);
void super_restart(struct super *s, struct service *v);
void super_end(struct super *s, uint64_t timeout_ms);

/* ---- the descriptor store (keep.c) ---- */

int keep_open(struct err *e, int *fd, const char *run);
void keep_take(struct super *s); /* reads one message */
void keep_drop(struct service *v);

/* ---- requests to the supervisor (control.c) ---- */

int control_open(struct err *e, int *fd, const char *run);
/* Removes a stale socket of the supervisor. ERR_NO: the path is another kind of file, which stays. */
int socket_path_clear(struct err *e, const char *path);
void control_accept(struct super *s);
void control_take(struct super *s, struct client *c);
/* Responds to the clients that wait for this service; why NULL: it is ready. */
void control_answer(struct super *s, const struct service *v, const char *why);
void control_end(struct super *s);
/* The client side: sends a request and blocks for the response. ERR_NO: no supervisor, or it refuses. timeout_ms -1: no
 * limit. */
struct json_t;
int control_ask(struct err *e, const char *run, struct json_t *request, int timeout_ms);

/* ---- state.json (state.c) ---- */

int state_write(struct err *e, const struct super *s);
/* An object, owned by the caller. ERR_NO: there is none. */
int state_read(struct err *e, struct json_t **out, const char *run);
/* Ends the processes that a killed supervisor left running; *n: their number. */
int state_end_stale(struct err *e, size_t *n, const char *run);

/* ---- services that `phasepipe up` did not start, such as systemd units (ps_units.c) ---- */

/* A list of objects as in state.json, owned by the caller; restarts is null, pid 0 if it is not known. ERR_NO: no
 * service listens in the directory run. */
int units_list(struct err *e, struct json_t **out, const char *run);

/* ---- requests to sched and kvstore (ask.c) ---- */

struct wire_stat;
struct wire_worker;
struct asker;
/* sched: URL; NULL: that of the directory run. peer_tls: directory of credentials, for tls+tcp://; NULL: none. */
int asker_open(struct err *e, struct asker **out, const char *run, const char *sched, const char *peer_tls,
               bool plaintext);
void asker_close(struct asker *a);
/* Results are borrowed until the next request. ERR_NO: no response within 5 s. */
int asker_stat(struct err *e, struct asker *a, const struct wire_stat **stat, const struct wire_worker **w, size_t *n);
int asker_set(struct err *e, struct asker *a, const char *name, const char *worker, double value);
struct wire_kv_stat;
int ask_store(struct err *e, struct wire_kv_stat *out, const char *run, const char *url);

#endif
