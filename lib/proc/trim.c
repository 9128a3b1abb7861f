/* Memory that was freed goes back to the system. */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include "base/time.h"
#include "proc/proc.h"

#define PERIOD_NS NS_S
#define FREE_BYTES ((uint64_t)16 << 20) /* less free memory is kept for later requests */

static int statm = -1;

void proc_trim_open(void)
{
    if (statm < 0)
        statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
}

/* Resident bytes without those of files and shared memory; 0: unknown. */
static uint64_t resident(void)
{
    char text[128];
    unsigned long long all, shared;
    ssize_t n = pread(statm, text, sizeof text - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = 0;
    if (sscanf(text, "%*u %llu %llu", &all, &shared) != 2 || all < shared)
        return 0;
    return (all - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Resident bytes that are not allocated: free memory, and what is not of malloc. */
static uint64_t unused(void)
{
    struct mallinfo2 m = mallinfo2();
    uint64_t n = resident(), used = m.uordblks + m.hblkhd;
    return n > used ? n - used : 0;
}

void proc_trim(void)
{
    static uint64_t next_ns, after; /* after: unused bytes that were left when it was trimmed, or fewer since */
    uint64_t now = time_now_ns();
    if (now < next_ns || statm < 0)
        return;
    next_ns = now + PERIOD_NS;
    uint64_t n = unused();
    after = n < after ? n : after;
    if (n < after + FREE_BYTES)
        return;
    malloc_trim(0);
    after = unused();
}
