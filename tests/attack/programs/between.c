// Swaps two names between two system calls of a daemon: between PID. It traces all threads of the daemon and counts the
// system calls on paths or descriptors in its own working directory, which is the workspace.
//
// Commands on standard input:
// - `N BACK A B` swaps A and B on entry to the N-th of these calls, and with BACK = 1 swaps them back on entry to the next.
// - `end` prints the number of calls, the number of swaps, the call before the first swap, and a call that is not
//   anchored: one that follows links, or that names a file by more than one component below a descriptor.
#include "attack.h"
#include <dirent.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

// A call that takes descriptors, each with a path or alone: the positions of the arguments, or -1.
struct call {
    int number;
    const char *name;
    int fd, path, other_fd, other_path;
};

#define OF_NAME(name) {SYS_##name, #name, 0, 1, -1, -1}
#define OF_FD(name) {SYS_##name, #name, 0, -1, -1, -1}
static const struct call CALLS[] = {
    OF_NAME(openat), OF_NAME(openat2), OF_NAME(newfstatat), OF_NAME(statx), OF_NAME(readlinkat),
    OF_NAME(faccessat), OF_NAME(faccessat2), OF_NAME(mkdirat), OF_NAME(mknodat), OF_NAME(unlinkat),
    OF_NAME(fchmodat), OF_NAME(fchmodat2), OF_NAME(fchownat), OF_NAME(utimensat),
    {SYS_symlinkat, "symlinkat", 1, 2, -1, -1}, {SYS_linkat, "linkat", 0, 1, 2, 3}, {SYS_renameat, "renameat", 0, 1, 2, 3},
    {SYS_renameat2, "renameat2", 0, 1, 2, 3}, {SYS_copy_file_range, "copy_file_range", 0, -1, 2, -1},
    OF_FD(getdents64), OF_FD(fsync), OF_FD(fchmod), OF_FD(fchown), OF_FD(ftruncate), OF_FD(pread64), OF_FD(preadv2), OF_FD(pwrite64),
#ifdef SYS_open
    // Calls with a path alone are never anchored.
    {SYS_open, "open", -1, 0, -1, -1}, {SYS_stat, "stat", -1, 0, -1, -1}, {SYS_lstat, "lstat", -1, 0, -1, -1},
    {SYS_mkdir, "mkdir", -1, 0, -1, -1}, {SYS_unlink, "unlink", -1, 0, -1, -1}, {SYS_rmdir, "rmdir", -1, 0, -1, -1},
    {SYS_rename, "rename", -1, 0, -1, 1}, {SYS_chmod, "chmod", -1, 0, -1, -1}, {SYS_chown, "chown", -1, 0, -1, -1},
    {SYS_readlink, "readlink", -1, 0, -1, -1},
#endif
    {SYS_truncate, "truncate", -1, 0, -1, -1}, {SYS_listxattr, "listxattr", -1, 0, -1, -1},
    {SYS_getxattr, "getxattr", -1, 0, -1, -1}, {SYS_setxattr, "setxattr", -1, 0, -1, -1},
};

static int daemon_pid;
static char workspace[PATH_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_armed;
static unsigned long swap_call, calls;
static int swaps_back, swaps;
static char names[2][256], swapped_at[32], unanchored[256];

static bool is_within(const char *path)
{
    size_t length = strlen(workspace);
    return !strncmp(path, workspace, length) && (!path[length] || path[length] == '/' || path[length] == ' ');
}

static void path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", daemon_pid, fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

static size_t read_from(const void *address, void *bytes, size_t size)
{
    // Reads page by page: the page after a string may not be mapped.
    size_t done = 0;
    while (done < size) {
        size_t part = 4096 - ((uintptr_t)address + done) % 4096;
        struct iovec local = {(char *)bytes + done, part < size - done ? part : size - done};
        struct iovec remote = {(char *)address + done, local.iov_len};
        ssize_t length = process_vm_readv(daemon_pid, &local, 1, &remote, 1, 0);
        if (length <= 0)
            break;
        done += length;
    }
    return done;
}

// Swaps the names. If only one exists, renames it to the other.
static void swap(void)
{
    if (syscall(SYS_renameat2, AT_FDCWD, names[0], AT_FDCWD, names[1], 2 /* RENAME_EXCHANGE */) &&
        syscall(SYS_renameat2, AT_FDCWD, names[1], AT_FDCWD, names[0], 1 /* RENAME_NOREPLACE */))
        syscall(SYS_renameat2, AT_FDCWD, names[0], AT_FDCWD, names[1], 1);
}

static bool is_anchored(const struct call *call, const char *path, const __uint64_t *args)
{
    struct open_how how = {0};
    bool is_component = !strchr(path, '/');
    switch (call->number) {
    case SYS_openat2:
        read_from((void *)args[2], &how, sizeof how);
        return how.resolve & RESOLVE_BENEATH && how.resolve & RESOLVE_NO_MAGICLINKS && !(how.flags & O_CREAT);
    case SYS_openat:
        return is_component && (args[2] & (O_NOFOLLOW | O_EXCL) || !strcmp(path, "."));
    case SYS_newfstatat:
        return is_component && (args[3] & AT_SYMLINK_NOFOLLOW || !*path);
    case SYS_statx:
        return is_component && (args[2] & AT_SYMLINK_NOFOLLOW || !*path);
    default:
        return is_component;
    }
}

// Whether a call concerns the workspace.
static bool concerns(const struct call *call, const __uint64_t *args, int fd, int path)
{
    char name[PATH_MAX] = "", target[PATH_MAX] = "";
    if (path >= 0)
        name[read_from((void *)args[path], name, sizeof name - 1)] = 0;
    if (*name == '/' || (fd < 0 && path >= 0)) {
        if (!is_within(name))
            return false;
        snprintf(unanchored, sizeof unanchored, "%s(%.200s)", call->name, name);
        return true;
    }
    if (fd < 0 || (int)args[fd] < 0)
        return false;
    path_of((int)args[fd], target);

    // A link in /proc to a descriptor names the file behind it.
    if (path >= 0 && !strncmp(target, "/proc/", 6) && *name && strspn(name, "0123456789") == strlen(name)) {
        path_of(atoi(name), target);
        return is_within(target);
    }
    if (!is_within(target))
        return false;
    if (path >= 0 && !is_anchored(call, name, args))
        snprintf(unanchored, sizeof unanchored, "%s(%.200s)", call->name, name);
    return true;
}

static void on_call_entry(const __uint64_t *args, int number)
{
    const struct call *call = NULL;
    for (unsigned each = 0; !call && each < sizeof CALLS / sizeof *CALLS; each++)
        if (CALLS[each].number == number)
            call = &CALLS[each];
    if (!call)
        return;
    bool first = concerns(call, args, call->fd, call->path);
    bool second = (call->other_fd >= 0 || call->other_path >= 0) && concerns(call, args, call->other_fd, call->other_path);
    if (!first && !second)
        return;
    calls++;
    if (calls == swap_call || (swaps == 1 && swaps_back && calls == swap_call + 1)) {
        swap();
        if (!swaps++)
            snprintf(swapped_at, sizeof swapped_at, "%s", call->name);
    }
}

static void *read_commands(void *nothing)
{
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        pthread_mutex_lock(&lock);
        is_armed = strcmp(line, "end\n");
        if (!is_armed) {
            printf("%lu %d %s %s\n", calls, swaps, *swapped_at ? swapped_at : "-", *unanchored ? unanchored : "-");
        } else if (sscanf(line, "%lu %d %255s %255s", &swap_call, &swaps_back, names[0], names[1]) == 4) {
            calls = swaps = *swapped_at = *unanchored = 0;
            printf("armed\n");
        }
        fflush(stdout);
        pthread_mutex_unlock(&lock);
    }
    exit(0);
    return nothing;
}

static int seize_all(void)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", daemon_pid);
    DIR *tasks = opendir(path);
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        int id = atoi(task->d_name);
        if (id && !ptrace(PTRACE_SEIZE, id, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE)) {
            ptrace(PTRACE_INTERRUPT, id, 0, 0);
            count++;
        }
    }
    closedir(tasks);
    return count;
}

int main(int count, char **arguments)
{
    pthread_t command_reader;
    if (count != 2 || !getcwd(workspace, sizeof workspace))
        return 2;
    daemon_pid = atoi(arguments[1]);

    // The daemon may create threads while the list is read: repeat until there are no new threads.
    if (!seize_all())
        die("PTRACE_SEIZE");
    while (seize_all())
        ;
    if (pthread_create(&command_reader, NULL, read_commands, NULL))
        die("pthread_create");
    int status;
    for (pid_t id; (id = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status))
            continue;
        int signal = WSTOPSIG(status), event = status >> 16, passed = 0;
        if (signal == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            pthread_mutex_lock(&lock);
            if (is_armed && ptrace(PTRACE_GET_SYSCALL_INFO, id, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY)
                on_call_entry(info.entry.args, info.entry.nr);
            pthread_mutex_unlock(&lock);
        } else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
            ptrace(PTRACE_LISTEN, id, 0, 0);
            continue;
        } else if (!event) {
            passed = signal;
        }
        ptrace(PTRACE_SYSCALL, id, 0, passed);
    }
    return 0;
}
