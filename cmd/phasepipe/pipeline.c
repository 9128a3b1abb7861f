/* The pipeline of a conversation. */
#include "cmd/phasepipe/phasepipe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const stages[PIPELINE_N] = {"tokenize", "prefill", "decode"};

/* In the child: standard input and output are the pipes, everything else is closed by O_CLOEXEC. */
static void become(const char *dir, int stage, int in, int out, const char *model, const char *threads)
{
    char path[PATH_MAX + 16];
    const char *argv[8];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", dir, stages[stage]);
    argv[n++] = stages[stage];
    if (stage == 0)
        argv[n++] = "--jsonl";
    if (model) {
        argv[n++] = "-m";
        argv[n++] = model;
    }
    if (threads && stage > 0) {
        argv[n++] = "--threads";
        argv[n++] = threads;
    }
    argv[n] = NULL;
    if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
        execv(path, (char **)argv);
    fprintf(stderr, "phasepipe: run %s: %s\n", path, strerror(errno));
    _exit(ERR_SYS);
}

int pipeline_start(struct err *e, struct pipeline *p, const char *model, const char *threads)
{
    char dir[PATH_MAX];
    int fd[PIPELINE_N + 1][2];
    *p = (struct pipeline){.in = -1, .out = -1};
    if (programs_dir(e, dir, sizeof dir))
        return e->code;
    for (int i = 0; i <= PIPELINE_N; i++)
        if (pipe2(fd[i], O_CLOEXEC))
            return err_sys(e, "pipe");
    for (int i = 0; i < PIPELINE_N; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return err_sys(e, "start %s", stages[i]);
        if (pid == 0) {
            setpgid(0, p->pid[0]);
            become(dir, i, fd[i][0], fd[i + 1][1], model, threads);
        }
        setpgid(pid, p->pid[0] ? p->pid[0] : pid);
        p->pid[i] = pid;
    }
    for (int i = 0; i <= PIPELINE_N; i++) {
        if (i > 0)
            close(fd[i][1]);
        if (i < PIPELINE_N)
            close(fd[i][0]);
    }
    p->in = fd[0][1];
    p->out = fd[PIPELINE_N][0];
    return 0;
}

int pipeline_end(struct err *e, struct pipeline *p, int now)
{
    int r = 0;
    if (p->in >= 0)
        close(p->in);
    if (p->out >= 0)
        close(p->out);
    for (int i = 0; i < PIPELINE_N && now; i++)
        if (p->pid[i] > 0)
            kill(p->pid[i], SIGKILL);
    for (int i = 0; i < PIPELINE_N; i++) {
        int status = 0;
        if (p->pid[i] <= 0)
            continue;
        while (waitpid(p->pid[i], &status, 0) < 0 && errno == EINTR)
            ;
        if (now || r || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
            continue;
        if (WIFSIGNALED(status))
            r = err_set(e, ERR_NO, "%s was killed by signal %d", stages[i], WTERMSIG(status));
        else
            r = err_set(e, ERR_NO, "%s failed with status %d", stages[i], WEXITSTATUS(status));
    }
    return r;
}
