// Common to all programs: they print a line `attempt: answer` for each attempt. The answer is `ok` or the name of the
// error.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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

// Calls that x86-64 has in an older form. Other architectures make them by the newer form alone.
#ifdef __x86_64__
#define CHMOD(path, mode) CALL(chmod, path, mode)
#define CHOWN(path, user, group) CALL(chown, path, user, group)
#define CREAT(path, mode) CALL(creat, path, mode)
#define MKNOD(path, mode, device) CALL(mknod, path, mode, device)
#define OPEN(path, flags, mode) CALL(open, path, flags, mode)
#else
#define CHMOD(path, mode) CALL(fchmodat, AT_FDCWD, path, mode)
#define CHOWN(path, user, group) CALL(fchownat, AT_FDCWD, path, user, group, 0)
#define CREAT(path, mode) CALL(openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode)
#define MKNOD(path, mode, device) CALL(mknodat, AT_FDCWD, path, mode, device)
#define OPEN(path, flags, mode) CALL(openat, AT_FDCWD, path, flags, mode)
#endif

// Connects a non-blocking socket. No answer within a second is ETIMEDOUT, which is not a prompt failure.
static inline long connect_promptly(int end, const void *address, socklen_t length)
{
    if (connect(end, address, length) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -1;

    struct pollfd ready = {.fd = end, .events = POLLOUT};
    if (poll(&ready, 1, 1000) == 0) {
        errno = ETIMEDOUT;
        return -1;
    }

    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(end, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error ? -1 : 0;
}

static inline void die(const char *attempt)
{
    perror(attempt);
    exit(99);
}
