/* What time is it? The only place that asks the system, so that everything else can be told. */
#include "config/base/clock.h"

#include <time.h>

uint64_t clock_now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

int64_t clock_wall_s(void)
{
    return (int64_t)time(NULL);
}
