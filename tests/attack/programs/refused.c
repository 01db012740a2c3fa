// System calls that an attacker needs and a command does not.
#include "attack.h"
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>

#define TRY(name, ...) answer(#name, CALL(name, ##__VA_ARGS__))

int main(void)
{
    static char page[4096];
    struct io_uring_params parameters = {0};
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    struct perf_event_attr counter = {.size = sizeof counter, .exclude_kernel = 1};
    TRY(keyctl, 0, -3, 0, 0, 0);
    TRY(add_key, "user", "name", "value", 5, -3);
    TRY(request_key, "user", "name", NULL, -3);
    TRY(io_uring_setup, 1, &parameters);
    TRY(io_uring_enter, 0, 1, 0, 0, NULL, 0);
    TRY(io_uring_register, 0, 0, NULL, 0);
    TRY(bpf, BPF_MAP_CREATE, &map, sizeof map);
    TRY(userfaultfd, 1);
    TRY(perf_event_open, &counter, 0, -1, -1, 0);
    TRY(open_by_handle_at, AT_FDCWD, page, 0);
    TRY(kexec_load, 0, 0, NULL, 0);
    TRY(kexec_file_load, 0, 0, 0, NULL, 0);
    TRY(init_module, page, sizeof page, "");
    TRY(finit_module, 0, "", 0);
    TRY(delete_module, "fuse", 0);
    TRY(reboot, 0xfee1dead, 672274793, 0, NULL);
    TRY(acct, NULL);
    TRY(syslog, 3, page, sizeof page);
#ifdef __x86_64__
    TRY(iopl, 3);
    TRY(ioperm, 0, 8, 1);
    TRY(modify_ldt, 0, page, sizeof page);
#endif
    TRY(vhangup);
    TRY(fanotify_init, 0, 0);
    TRY(settimeofday, &(struct timeval){1, 1}, NULL);
    TRY(clock_settime, CLOCK_REALTIME, &(struct timespec){1, 1});
    TRY(sethostname, "other", 5);
    TRY(setdomainname, "other", 5);
    TRY(mbind, page, sizeof page, 0, NULL, 0, 0);
    TRY(set_mempolicy, 0, NULL, 0);
    TRY(move_pages, 0, 0, NULL, NULL, NULL, 0);
    TRY(migrate_pages, 0, 0, NULL, NULL);
    TRY(personality, 0x0400000); // READ_IMPLIES_EXEC
    // A call newer than any list of calls.
    answer("a call of the future", syscall(1000));
    return 0;
}
