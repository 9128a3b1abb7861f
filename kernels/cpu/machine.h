/* Choices by speed, made once by kern_select for this processor. They change no bit of a result. */
#ifndef KERNELS_MACHINE_H
#define KERNELS_MACHINE_H

#include <stdbool.h>

/* For few rows, weights are loaded in order before the arithmetic (touch_super) instead of prefetched. */
extern bool machine_touches;

#endif
