// System calls by the numbers of other architectures, which a filter for this architecture would read as other calls. A
// child process makes each call; the answer is how the child ended, or the error of the call.
#include "attack.h"

static long int80(long number, long first, long second, long third)
{
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(first), "c"(second), "d"(third)
                     : "memory", "r8", "r9", "r10", "r11");
    return result;
}

static void in_child(const char *attempt, int through_int80, long number, long first, long second, long third)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        long result = through_int80 ? int80(number, first, second, third) : syscall(number, first, second, third);
        if (through_int80 && result < 0) {
            errno = -result;
            result = -1;
        }
        answer(attempt, result);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s: SIG%s\n", attempt, sigabbrev_np(WTERMSIG(status)));
}

int main(void)
{
    // A 32-bit call takes 32-bit addresses.
    char *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    strcpy(low, "/tmp");
    long path = (long)low;
    unsigned *vsock = (unsigned *)(low + 64);
    vsock[0] = 40, vsock[1] = 1, vsock[2] = 0;
    in_child("32-bit getpid", 1, 20, 0, 0, 0);
    in_child("32-bit mount", 1, 21, path, path, 0);
    in_child("32-bit ptrace", 1, 26, 0, 0, 0);
    in_child("32-bit chmod u+s", 1, 15, path, 04755, 0);
    in_child("32-bit unshare", 1, 310, CLONE_NEWUSER, 0, 0);
    in_child("32-bit socketcall", 1, 102, 1, (long)vsock, 0);
    const long x32 = 0x40000000;
    in_child("x32 getpid", 0, x32 | SYS_getpid, 0, 0, 0);
    in_child("x32 mount", 0, x32 | SYS_mount, path, path, 0);
    in_child("x32 unshare", 0, x32 | SYS_unshare, CLONE_NEWUSER, 0, 0);
    in_child("x32 socket", 0, x32 | SYS_socket, 40, 1, 0);
    in_child("x32 ptrace", 0, x32 | 521, 0, 0, 0);
    return 0;
}
