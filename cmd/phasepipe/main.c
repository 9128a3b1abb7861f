/* phasepipe: the front command. Runs any program of the suite by name, and the commands that need several of them. */
#include "cmd/phasepipe/phasepipe.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "wire/wire.h"

static const struct {
    const char *name, *about;
} programs[] = {
    {"tokenize", "text, chat messages and JSON lines to token frames"},
    {"prefill", "computes prompts: tokens to KV blocks and the first token"},
    {"decode", "computes answers: KV blocks to text"},
    {"stream", "shows answers as text or JSON lines"},
    {"frames", "frames to JSON lines and back; splits and merges streams"},
    {"kvstore", "owns the KV blocks of a host, and leases them to workers"},
    {"sched", "assigns requests to workers, by cached prefixes and service levels"},
    {"sched-fcfs", "the same, in the order of arrival"},
    {"sched-colocate", "the same, both phases of a request on one worker"},
    {"sched-exec", "the same, with the decisions of a program of your own"},
    {"simulate", "a cluster of fake workers in virtual time, under one of these policies"},
    {"bench", "measures a server of the OpenAI API under load"},
};

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"chat", "a conversation in the terminal", chat},
    {"up", "starts the services, and restarts those that crash", up},
    {"down", "drains the services and ends them", down},
    {"ps", "lists the services", ps},
    {"top", "shows their activity, live", top},
    {"ctl", "queries the services, drains workers, changes settings, swaps the policy", ctl},
    {"tls-init", "makes certificates for services on several hosts", tls_init},
    {"unit-cores", "gives the worker units of systemd their processors", unit_cores},
    {"cache", "lists and prunes the packed weights of models", cache},
    {"env", "prints the line that puts the programs on the PATH: eval \"$(phasepipe env)\"", NULL},
};

int programs_dir(struct err *e, char *out, size_t n)
{
    char self[PATH_MAX], probe[PATH_MAX + 32];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0)
        return err_sys(e, "the directory of this program");
    self[len] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return err_set(e, ERR_SYS,
                       "cannot find the directory of this program: /proc/self/exe is '%.200s', without a directory",
                       self);
    *slash = 0;
    static const char *const beside[] = {"", "/../libexec/phasepipe"};
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        snprintf(probe, sizeof probe, "%s%s/tokenize", self, beside[i]);
        if (access(probe, X_OK))
            continue;
        int used = snprintf(out, n, "%s%s", self, beside[i]);
        if (used < 0 || (size_t)used >= n)
            return err_set(e, ERR_SYS, "the path of the programs in %.150s exceeds %zu bytes", self, n - 1);
        return 0;
    }
    return err_set(e, ERR_SYS, "the programs are neither in %.150s nor in %.150s/../libexec/phasepipe", self, self);
}

static void list(void)
{
    printf("usage: phasepipe NAME [ARGUMENT ...]\nA language model as a pipeline: each phase is a "
           "program.\n\nprograms:\n");
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        printf("  %-14s %s\n", programs[i].name, programs[i].about);
    printf("\ncommands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        printf("  %-14s %s\n", commands[i].name, commands[i].about);
    printf("\nEach has --help and a manual page; begin with phasepipe(7).\n");
}

/* Prints a value in single quotes for the shell; a quote within it becomes '\''. */
static void print_quoted(const char *s)
{
    putchar('\'');
    for (; *s; s++) {
        if (*s == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*s);
    }
    putchar('\'');
}

static int env(struct err *e)
{
    char dir[PATH_MAX], full[PATH_MAX];
    if (programs_dir(e, dir, sizeof dir))
        return e->code;
    if (!realpath(dir, full))
        return err_sys(e, "%s", dir);
    printf("export PATH=");
    print_quoted(full);
    printf(":\"$PATH\"\n");
    return 0;
}

/* Any program in the directory of the others can be run by its name, so a new policy needs no entry here. */
static int run_program(struct err *e, char **argv)
{
    char dir[PATH_MAX], path[PATH_MAX + 80];
    size_t n = strlen(argv[0]);
    bool name = n > 0 && n < 64 && strspn(argv[0], "abcdefghijklmnopqrstuvwxyz0123456789-") == n && argv[0][0] != '-';
    if (name && programs_dir(e, dir, sizeof dir))
        return e->code;
    if (name)
        snprintf(path, sizeof path, "%s/%s", dir, argv[0]);
    if (!name || !strcmp(argv[0], "phasepipe") || access(path, X_OK))
        return err_set(e, ERR_USAGE, "unknown program or command '%.60s'", argv[0]);
    execv(path, argv);
    return err_sys(e, "run %s", path);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *name = argc > 1 ? argv[1] : NULL;
    int r = 0;
    for (size_t i = 0; name && i < sizeof commands / sizeof *commands; i++)
        if (commands[i].run && !strcmp(name, commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    if (!name)
        r = err_set(&e, ERR_USAGE, "a program or command is required");
    else if (!strcmp(name, "--help"))
        list();
    else if (!strcmp(name, "--version"))
        printf("phasepipe %s, frames %d\n", PHASEPIPE_VERSION, WIRE_VERSION);
    else if (!strcmp(name, "env"))
        r = argc > 2 ? err_set(&e, ERR_USAGE, "env takes no arguments") : env(&e);
    else
        r = run_program(&e, argv + 1);
    if (!r)
        r = cli_close_stdout(&e);
    return r ? cli_fail("phasepipe", &e) : 0;
}
