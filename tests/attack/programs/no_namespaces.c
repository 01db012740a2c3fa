// A host on which user.max_user_namespaces is 0: no_namespaces PROGRAM ARGUMENT... The program runs in a user namespace
// with all users (for root) or with its own user (for another user), in which no further namespace can be created. With
// NAME=VALUE in JIG_TEST_LIMIT, user.NAME is VALUE instead. The test runs it on the host.
#include "attack.h"

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) < 0)
        die(path);
    close(file);
}

int main(int count, char **arguments)
{
    char path[64], map[64];
    int made[2];
    uid_t user = geteuid();
    pid_t self = getpid(), helper = 0;
    if (count < 2 || pipe2(made, O_CLOEXEC))
        return 64;
    if (user == 0 && (helper = fork()) == 0) {
        // Only a process outside the namespace may map other users than its own.
        if (read(made[0], map, 1) != 1)
            _exit(1);
        snprintf(path, sizeof path, "/proc/%d/uid_map", self);
        put(path, "0 0 4294967295");
        snprintf(path, sizeof path, "/proc/%d/gid_map", self);
        put(path, "0 0 4294967295");
        _exit(0);
    }

    // The mount namespace must be new too, as in a container: otherwise mounting would fail whatever the limit is.
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        die("unshare");
    if (helper) {
        int status;
        if (write(made[1], "x", 1) != 1 || waitpid(helper, &status, 0) < 0 || status)
            die("maps");
    } else {
        snprintf(map, sizeof map, "%u %u 1", user, user);
        put("/proc/self/setgroups", "deny");
        put("/proc/self/uid_map", map);
        put("/proc/self/gid_map", map);
    }
    char *limit = getenv("JIG_TEST_LIMIT");
    char *value = limit ? strchr(limit, '=') : NULL;
    if (value)
        *value++ = 0;
    snprintf(path, sizeof path, "/proc/sys/user/%s", value ? limit : "max_user_namespaces");
    put(path, value ? value : "0");
    execv(arguments[1], arguments + 1);
    die(arguments[1]);
    return 99;
}
