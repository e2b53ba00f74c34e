#pragma once
#include <stdint.h>

/* Microseconds of CLOCK_MONOTONIC: the same clock in every process of the machine. Called at the
 * edges only; pure code takes now_us as an argument (STYLE 8). */
uint64_t clock_now_us(void);

/* Seconds since 1970, for `created` fields and certificates of age. */
int64_t clock_wall_s(void);
