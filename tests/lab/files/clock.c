/* Copyright (c) 2026, The sparkstack.inference developers
 * GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Answers in libc's place when a program asks for the time of day: off by LAB_CLOCK seconds. See sparklab/hinder.py.
 * Without headers and libraries, so that the compiler alone will do.
 */
struct timespec { long sec, part; };
extern void *dlsym(void *, const char *);
extern char *getenv(const char *);
extern long strtol(const char *, char **, int);
#define NEXT(name) dlsym((void *)-1L, name)

static long offset(void)
{
    const char *text = getenv("LAB_CLOCK");
    return text ? strtol(text, 0, 10) : 0;
}

int clock_gettime(int clock, struct timespec *now)
{
    static int (*real)(int, struct timespec *);
    if (!real)
        real = (int (*)(int, struct timespec *))NEXT("clock_gettime");
    int code = real(clock, now);
    if (!code && (clock == 0 || clock == 5)) /* CLOCK_REALTIME, CLOCK_REALTIME_COARSE */
        now->sec += offset();
    return code;
}

int gettimeofday(struct timespec *now, void *zone)
{
    static int (*real)(struct timespec *, void *);
    if (!real)
        real = (int (*)(struct timespec *, void *))NEXT("gettimeofday");
    int code = real(now, zone);
    if (!code)
        now->sec += offset();
    return code;
}

long time(long *kept)
{
    struct timespec now;
    clock_gettime(0, &now);
    if (kept)
        *kept = now.sec;
    return now.sec;
}
