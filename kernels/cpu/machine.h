/* What is faster on the processor that runs this, found out once by kern_select. No setting changes a bit of a result.
 */
#ifndef KERNELS_MACHINE_H
#define KERNELS_MACHINE_H

#include <stdbool.h>

/* Weights of few rows are loaded in order before the arithmetic (touch_super), instead of prefetched. */
extern bool machine_touches;

#endif
