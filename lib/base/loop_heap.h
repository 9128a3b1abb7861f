/* Timers by deadline as a pairing heap. The links are in the timers, so that setting a timer cannot fail. Used by the
 * event loop, and by code with a clock of its own, which sets only at_ns and leaves the other fields zeroed. */
#ifndef BASE_LOOP_HEAP_H
#define BASE_LOOP_HEAP_H

struct loop_timer;

/* Both return the new root, the timer with the smallest at_ns; NULL: the heap is empty. */
struct loop_timer *loop_heap_add(struct loop_timer *root, struct loop_timer *t);
struct loop_timer *loop_heap_remove(struct loop_timer *root, struct loop_timer *t);

#endif
