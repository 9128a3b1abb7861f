/* The timers of a loop as a pairing heap: its links are in the timers, so that setting one cannot fail. */
#ifndef BASE_LOOP_HEAP_H
#define BASE_LOOP_HEAP_H

struct loop_timer;

/* Both return the new root, the timer with the least at_ns (NULL: none is left). */
struct loop_timer *loop_heap_add(struct loop_timer *root, struct loop_timer *t);
struct loop_timer *loop_heap_remove(struct loop_timer *root, struct loop_timer *t);

#endif
