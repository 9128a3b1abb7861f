/* A file of cores in a folder of its own, and tests that may tie this thread to a core. */
#ifndef CORES_FILE_H
#define CORES_FILE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/cores_test.XXXXXX";
static char path[64]; /* of the file */
static cpu_set_t all; /* where this process may run */

/* Tests that take a core tie this thread to it. */
static int set_free(void **state)
{
    (void)state;
    return sched_setaffinity(0, sizeof all, &all);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/cores", dir);
    return sched_getaffinity(0, sizeof all, &all);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

#endif
