/*
 * state.json, which a killed supervisor leaves: arbitrary bytes, and damaged valid files. Reading it changes nothing;
 * the next supervisor signals only processes whose number and start time are in it. Input: the file.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fake_kill(int pid, int sig);
static int fake_sleep(void);
#define kill(pid, sig) fake_kill(pid, sig)
#define nanosleep(t, left) fake_sleep()
/* Its source, because a program's functions are in no library. */
#include "cmd/phasepipe/state.c"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define LIVE_PID 4321
#define LIVE_BORN 777

static char run[] = "/tmp/state_fuzz.XXXXXX";
static bool lives;

/* The only process: it ends at SIGKILL. */
static int fake_kill(int pid, int sig)
{
    assert(pid == LIVE_PID);
    lives &= sig != SIGKILL;
    return 0;
}

static int fake_sleep(void)
{
    return 0;
}

uint64_t process_born(pid_t pid)
{
    return pid == LIVE_PID && lives ? LIVE_BORN : 0;
}

char process_letter(pid_t pid, uint64_t born)
{
    return pid == LIVE_PID && lives && born == LIVE_BORN ? 'S' : 0;
}

const char *command_program(const struct command *c)
{
    return c->path;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    char path[sizeof run + 16];
    json_t *o = NULL;
    size_t n_ended;
    if (run[sizeof run - 2] == 'X')
        assert(mkdtemp(run));
    snprintf(path, sizeof path, "%s/state.json", run);
    FILE *f = fopen(path, "w");
    assert(f && fwrite(p, 1, n, f) == n && !fclose(f));
    lives = true;
    int rc = state_read(&e, &o, run);
    assert(rc ? !o && (rc == ERR_PROTO || rc == ERR_NO) : json_is_array(json_object_get(o, "services")));
    json_decref(o);
    assert(!state_end_stale(&e, &n_ended, run));
    assert(lives == (n_ended == 0));
    return 0;
}
