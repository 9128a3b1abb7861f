#include "sched/main.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "sched/exec.h"
#include "sched/sched.h"

/* NAME=VALUE */
static int set_knob(struct err *e, struct sched *s, const char *text)
{
    char name[64];
    const char *eq = strchr(text, '=');
    double v;
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof name)
        return err_set(e, ERR_USAGE, "--knob %.80s: NAME=VALUE should be here", text);
    memcpy(name, text, (size_t)(eq - text));
    name[eq - text] = 0;
    int rc = cli_f64(e, name, eq + 1, &v, 0, 1e15);
    return rc ? rc : sched_knob(e, s, name, v);
}

static int run(struct err *e, const struct sched_policy *p, const struct cli_list *knobs, const struct sched_filter *f)
{
    struct sched *s;
    int rc = f->jsonl ? 0 : cli_no_tty(e, STDOUT_FILENO, "frames");
    rc = rc ? rc : sched_new(e, &s, p, NULL);
    if (rc)
        return rc;
    for (size_t i = 0; i < knobs->n && !rc; i++)
        rc = set_knob(e, s, knobs->v[i]);
    rc = rc ? rc : sched_run_filter(e, s, f);
    sched_free(s);
    return rc;
}

int sched_main(struct err *e, int argc, char **argv, const char *prog, const char *about,
               const struct sched_policy *policy)
{
    struct sched_filter f = {.fd_in = STDIN_FILENO,
                             .fd_out = STDOUT_FILENO,
                             .prog = prog,
                             .say = cli_say,
                             .say_arg = (void *)(uintptr_t)prog};
    struct cli_list knobs = {0};
    const struct cli_opt opts[] = {
        {.name = "jsonl", .kind = CLI_FLAG, .out = &f.jsonl, .help = "events and decisions as lines of JSON"},
        {.letter = 'k',
         .name = "knob",
         .kind = CLI_LIST,
         .out = &knobs,
         .arg = "NAME=VALUE",
         .help = "set a knob of machine or policy"},
        {.name = "stat", .kind = CLI_FLAG, .out = &f.stat, .help = "end with a stat frame: the accounting"},
    };
    bool exec = policy == &sched_policy_exec;
    const struct cli_prog p = {prog,
                               exec ? "[--jsonl] [--knob NAME=VALUE ...] [--stat] COMMAND < events > decisions"
                                    : "[--jsonl] [--knob NAME=VALUE ...] [--stat] < events > decisions",
                               about,
                               opts,
                               sizeof opts / sizeof *opts,
                               exec};
    size_t n_arg;
    int rc = cli_parse(e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return rc;
    signal(SIGPIPE, SIG_IGN);
    struct sched_policy mine = *policy;
    if (!rc && exec && !n_arg)
        rc = err_set(e, ERR_USAGE, "the command of the policy is missing");
    if (!rc && exec)
        mine.arg = argv[1];
    rc = rc ? rc : run(e, &mine, &knobs, &f);
    cli_list_free(&knobs);
    return rc;
}
