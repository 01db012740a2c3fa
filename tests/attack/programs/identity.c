// Prints its real and effective ids and its permitted and effective capabilities.
#include "attack.h"
#include <linux/capability.h>

int main(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {0};
    CALL(capget, &header, sets);
    printf("uid %d %d gid %d %d permitted %x%08x effective %x%08x\n", getuid(), geteuid(), getgid(), getegid(),
           sets[1].permitted, sets[0].permitted, sets[1].effective, sets[0].effective);
    return 0;
}
