// Tries every way to create a file with the set-user-id or set-group-id bit. In a workspace that is mounted with its
// owner mapped, such a file would belong to the workspace's owner on the host: to root.
#include "attack.h"
#include <linux/openat2.h>
#include <sys/xattr.h>

static void made(const char *attempt, int file)
{
    answer(attempt, file);
    close(file);
}

int main(void)
{
    int file = open("plain", O_CREAT | O_RDWR, 0755);
    if (file < 0)
        die("plain");
    answer("chmod u+s", CHMOD("plain", 04755));
    answer("chmod g+s", CHMOD("plain", 02755));
    answer("chmod u+s, more bits", CHMOD("plain", 0x7fff00000000 | 04755));
    answer("fchmod", CALL(fchmod, file, 04755));
    answer("fchmodat", CALL(fchmodat, AT_FDCWD, "plain", 04755));
    answer("fchmodat2", CALL(fchmodat2, AT_FDCWD, "plain", 04755, 0));
    answer("fchmodat2 of a descriptor", CALL(fchmodat2, file, "", 04755, AT_EMPTY_PATH));
    made("open", OPEN("opened", O_CREAT | O_RDWR, 04755));
    made("openat", CALL(openat, AT_FDCWD, "opened", O_CREAT | O_RDWR, 04755));
    made("creat", CREAT("opened", 04755));
    made("nameless file", CALL(openat, AT_FDCWD, ".", O_TMPFILE | O_RDWR, 04755));
    struct open_how how = {.flags = O_CREAT | O_RDWR, .mode = 04755};
    made("openat2", CALL(openat2, AT_FDCWD, "opened", &how, sizeof how));
    answer("mknod", MKNOD("node", S_IFREG | 04755, 0));
    answer("mknodat", CALL(mknodat, AT_FDCWD, "node", S_IFREG | 04755, 0));
    answer("mknod of a block device", MKNOD("device", S_IFBLK | 0600, makedev(8, 0)));
    answer("mknod of a character device", MKNOD("device", S_IFCHR | 0600, makedev(1, 3)));
    char capability[20] = {0, 0, 0, 2, ~0, ~0, ~0, ~0};
    answer("capabilities of a file", setxattr("plain", "security.capability", capability, sizeof capability, 0));
    return 0;
}
