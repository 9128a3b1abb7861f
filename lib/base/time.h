/* Units of time and clocks. Times are uint64_t nanoseconds; as a deadline, UINT64_MAX means never. */
#ifndef BASE_TIME_H
#define BASE_TIME_H

#include <stdint.h>
#include <time.h>

#define NS_US ((uint64_t)1000)
#define NS_MS ((uint64_t)1000 * 1000)
#define NS_S ((uint64_t)1000 * 1000 * 1000)

uint64_t time_now_ns(void);  /* CLOCK_MONOTONIC: the clock of all deadlines and durations */
uint64_t time_wall_ns(void); /* CLOCK_REALTIME: since 1970, for display */

/* Milliseconds from now to a deadline, for poll(2) and epoll_wait(2). Rounded up, so that a wait does not end before
 * the deadline; 0: it has passed; -1: never. */
int time_left_ms(uint64_t at_ns, uint64_t now_ns);

struct timespec time_spec(uint64_t ns);

#endif
