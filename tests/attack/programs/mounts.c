// Tries to change mounts, with the old system calls and the new ones.
#include "attack.h"
#include <linux/mount.h>

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#define FLAG_BIND 4096
#define FLAG_REMOUNT 32
#define FLAG_PRIVATE (1 << 18)

int main(void)
{
    answer("bind", CALL(mount, "/usr", "/tmp", NULL, FLAG_BIND, NULL));
    answer("remount writable", CALL(mount, NULL, "/", NULL, FLAG_REMOUNT | FLAG_BIND, NULL));
    answer("tmpfs", CALL(mount, "tmpfs", "/tmp", "tmpfs", 0, NULL));
    answer("proc", CALL(mount, "proc", "/tmp", "proc", 0, NULL));
    answer("propagation", CALL(mount, NULL, "/", NULL, FLAG_PRIVATE, NULL));
    answer("detach /proc", CALL(umount2, "/proc", 2));
    answer("detach a mask", CALL(umount2, "/proc/interrupts", 2));
    answer("umount /workspace", CALL(umount2, "/workspace", 0));
    answer("pivot_root", CALL(pivot_root, "/tmp", "/tmp"));
    answer("chroot", CALL(chroot, "/tmp"));
    answer("fsopen", CALL(fsopen, "tmpfs", 0));
    answer("fsconfig", CALL(fsconfig, 0, 0, NULL, NULL, 0));
    answer("fsmount", CALL(fsmount, 0, 0, 0));
    answer("fspick", CALL(fspick, AT_FDCWD, "/", 0));
    answer("open_tree", CALL(open_tree, AT_FDCWD, "/", 0));
    answer("open_tree clone", CALL(open_tree, AT_FDCWD, "/", 1));
    answer("open_tree_attr", syscall(467, AT_FDCWD, "/", 1, NULL, 0));
    answer("move_mount", CALL(move_mount, AT_FDCWD, "/workspace", AT_FDCWD, "/tmp", 0));
    struct mount_attr writable = {.attr_clr = 1};
    answer("mount_setattr", CALL(mount_setattr, AT_FDCWD, "/", 0, &writable, sizeof writable));
    answer("mount_setattr of all below", CALL(mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &writable, sizeof writable));
    answer("mount_setattr of a descriptor", CALL(mount_setattr, open("/usr", O_PATH), "", AT_EMPTY_PATH | AT_RECURSIVE, &writable, sizeof writable));

    // OPEN_TREE_CLONE with AT_RECURSIVE: the copy could be made writable while it is mounted nowhere.
    answer("open_tree clone of all below", CALL(open_tree, AT_FDCWD, "/usr", 1 | AT_RECURSIVE));
    answer("open_tree_attr clone of all below", syscall(467, AT_FDCWD, "/usr", 1 | AT_RECURSIVE, &writable, sizeof writable));

    // A remount without MS_BIND changes the file system wherever it is mounted.
    static const char *const SAME[] = {"/usr", "/bin", "/etc", "/proc", "/proc/sys", "/dev", "/workspace"};
    for (unsigned place = 0; place < sizeof SAME / sizeof *SAME; place++) {
        char attempt[64];
        snprintf(attempt, sizeof attempt, "remount the file system of %s", SAME[place]);
        answer(attempt, CALL(mount, NULL, SAME[place], NULL, FLAG_REMOUNT, NULL));
        strcat(attempt, " with bind");
        answer(attempt, CALL(mount, NULL, SAME[place], NULL, FLAG_REMOUNT | FLAG_BIND, NULL));
    }
    answer("write to /usr", open("/usr/made", O_CREAT | O_WRONLY, 0600));
    answer("write to /", open("/made", O_CREAT | O_WRONLY, 0600));
    answer("swapon", CALL(swapon, "/workspace/mounts", 0));
    answer("quotactl", CALL(quotactl, 0x800007 << 8, "/dev/vda", 0, NULL));
    return 0;
}
