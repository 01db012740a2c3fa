// Tries to change what is mounted, by the old calls and the new ones.
#include "attack.h"
#include <linux/mount.h>

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
    answer("swapon", CALL(swapon, "/workspace/mounts", 0));
    answer("quotactl", CALL(quotactl, 0x800007 << 8, "/dev/vda", 0, NULL));
    return 0;
}
