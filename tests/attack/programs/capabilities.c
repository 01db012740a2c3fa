// Prints all five capability sets, tries to fill them, and tries to become another user.
#include "attack.h"
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>

int main(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {0};
    answer("capget", CALL(capget, &header, sets));

    uint64_t any = 0;
    for (int half = 0; half < 2; half++)
        any |= sets[half].effective | sets[half].permitted | sets[half].inheritable;
    for (int capability = 0; capability < 64; capability++) {
        any |= prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1;
        any |= prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, capability, 0, 0) == 1;
    }
    printf("capabilities: %s\n", any ? "some" : "none");

    for (int half = 0; half < 2; half++)
        sets[half] = (struct __user_cap_data_struct){~0U, ~0U, ~0U};
    answer("capset", CALL(capset, &header, sets));
    answer("raise ambient", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0));
    answer("set securebits", prctl(PR_SET_SECUREBITS, 0, 0, 0, 0));
    answer("keep capabilities", prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    answer("take back no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));

    answer("setuid", CALL(setuid, 0));
    answer("setreuid", CALL(setreuid, 0, 0));
    answer("setresuid", CALL(setresuid, 0, 0, 0));
    answer("setgid", CALL(setgid, 0));
    answer("setresgid", CALL(setresgid, 0, 0, 0));
    gid_t root = 0;
    answer("setgroups", CALL(setgroups, 1, &root));
    answer("setgroups to none", CALL(setgroups, 0, NULL));
    answer("chown", CHOWN("capabilities", 0, 0));
    return 0;
}
