// Sends every signal to process 1 in every way, then prints that it is alive. SIGUSR1 with a value asks process 1 to
// forward a signal, which must reach only the sender.
#include "attack.h"

int main(void)
{
    for (int signal = 1; signal <= 64; signal++)
        if (signal != SIGKILL && signal != SIGSTOP)
            sigaction(signal, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    int init = CALL(pidfd_open, 1, 0);
    for (int signal = 1; signal <= 64; signal++) {
        kill(1, signal);
        CALL(tgkill, 1, 1, signal);
        CALL(pidfd_send_signal, init, signal, NULL, 0);
        siginfo_t info = {.si_code = SI_QUEUE};
        info.si_value.sival_int = signal == SIGKILL || signal == SIGSTOP ? 0 : signal;
        info.si_signo = signal;
        CALL(rt_sigqueueinfo, 1, signal, &info);
    }

    // Process 1 must still reap.
    if (fork() == 0) {
        if (fork() == 0)
            _exit(0);
        _exit(0);
    }
    wait(NULL);
    puts("alive");
    return 7;
}
