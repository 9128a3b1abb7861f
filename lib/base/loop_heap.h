/* Timers by deadline as a pairing heap: its links are in the timers, so that setting one cannot fail. For the loop, and
 * for users with a clock of their own, who set at_ns alone and leave the other fields zeroed. */
#ifndef BASE_LOOP_HEAP_H
#define BASE_LOOP_HEAP_H

struct loop_timer;

/* Both return the new root, the timer with the least at_ns (NULL: none is left). */
struct loop_timer *loop_heap_add(struct loop_timer *root, struct loop_timer *t);
struct loop_timer *loop_heap_remove(struct loop_timer *root, struct loop_timer *t);

#endif
