/* A cores file in its own directory, for tests that may pin this thread to a core. */
#ifndef CORES_FILE_H
#define CORES_FILE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/cores_test.XXXXXX";
static char path[64]; /* of the file */
static cpu_set_t all; /* CPUs of this process */

/* Tests that take a core pin this thread to it; this undoes the pinning. */
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
