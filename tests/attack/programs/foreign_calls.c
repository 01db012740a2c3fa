// System calls by the numbers of other architectures, which a filter for this architecture would read as other calls.
#include "foreign.h"

int main(void)
{
    try_foreign("32-bit getpid", FOREIGN_GETPID, 0, 0);
    try_foreign_path("32-bit mount", FOREIGN_MOUNT, 0);
    try_foreign("32-bit ptrace", FOREIGN_PTRACE, 0, 0);
    try_foreign_path("32-bit chmod u+s", FOREIGN_CHMOD, 04755);
    try_foreign("32-bit unshare", FOREIGN_UNSHARE, CLONE_NEWUSER, 0);
    try_foreign_socket("32-bit socket", 40, 1);
    // On other architectures than x86-64, these are only numbers beyond the last.
    const long x32 = 0x40000000, path = (long)"/tmp";
    in_child("x32 getpid", x32 | SYS_getpid, 0, 0, 0);
    in_child("x32 mount", x32 | SYS_mount, path, path, 0);
    in_child("x32 unshare", x32 | SYS_unshare, CLONE_NEWUSER, 0, 0);
    in_child("x32 socket", x32 | SYS_socket, 40, 1, 0);
    in_child("x32 ptrace", x32 | 521, 0, 0, 0);
    return 0;
}
