// Common to all programs: they print a line `attempt: answer` for each attempt. The answer is `ok` or the name of the
// error.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static inline void answer(const char *attempt, long result)
{
    const char *error = result == -1 ? strerrorname_np(errno) : "ok";
    printf("%s: %s\n", attempt, error ? error : "unknown error");
    fflush(stdout);
}

// A system call by its number, without a wrapper of the C library.
#define CALL(name, ...) syscall(SYS_##name, ##__VA_ARGS__)

static inline void die(const char *attempt)
{
    perror(attempt);
    exit(99);
}
