#include "base/time.h"

#include <limits.h>

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * NS_S + (uint64_t)t.tv_nsec;
}

uint64_t time_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t time_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

int time_left_ms(uint64_t at_ns, uint64_t now_ns)
{
    if (at_ns == UINT64_MAX)
        return -1;
    if (at_ns <= now_ns)
        return 0;
    uint64_t ms = (at_ns - now_ns - 1) / NS_MS + 1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

struct timespec time_spec(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / NS_S), (long)(ns % NS_S)};
}
