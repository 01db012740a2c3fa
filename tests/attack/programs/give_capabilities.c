// Gives a file all capabilities, like setcap(8): give_capabilities FILE. The test runs it on the host.
#include "attack.h"
#include <linux/capability.h>
#include <sys/xattr.h>

int main(int count, char **arguments)
{
    struct vfs_cap_data all = {
        .magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE,
        .data = {{.permitted = ~0U}, {.permitted = 0x1ff}},
    };
    if (count != 2 || setxattr(arguments[1], "security.capability", &all, sizeof all, 0))
        die("setxattr");
    return 0;
}
