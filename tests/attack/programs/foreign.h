// Calls by the numbers of the 32-bit architecture that the kernel runs too: i386 on x86-64, arm on arm64. A filter for
// this architecture would read those numbers as other calls.
//
// A child process makes each call. The answer is how the child ended, or the error of the call.
#pragma once
#include "attack.h"

static inline void print_end(const char *attempt, pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s: SIG%s\n", attempt, sigabbrev_np(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        printf("%s: ok\n", attempt);
}

// A call of this architecture, in a child process.
static inline void in_child(const char *attempt, long number, long first, long second, long third)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        answer(attempt, syscall(number, first, second, third));
        _exit(0);
    }
    print_end(attempt, child);
}

#ifdef __x86_64__

enum foreign { FOREIGN_GETPID = 20, FOREIGN_MOUNT = 21, FOREIGN_PTRACE = 26, FOREIGN_CHMOD = 15, FOREIGN_UNSHARE = 310 };

// Memory at a 32-bit address.
static inline void *low_memory(void)
{
    void *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    return low == MAP_FAILED ? NULL : low;
}

static inline void try_foreign(const char *attempt, long number, long first, long second)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        long result;
        __asm__ volatile("int $0x80"
                         : "=a"(result)
                         : "a"(number), "b"(first), "c"(second), "d"(0)
                         : "memory", "r8", "r9", "r10", "r11");
        errno = result < 0 ? -result : 0;
        answer(attempt, result < 0 ? -1 : result);
        _exit(0);
    }
    print_end(attempt, child);
}

// A call whose first argument is the path /tmp.
static inline void try_foreign_path(const char *attempt, enum foreign number, long second)
{
    char *path = strcpy(low_memory(), "/tmp");
    try_foreign(attempt, number, (long)path, second);
}

static inline void try_foreign_socket(const char *attempt, int family, int type)
{
    // socketcall(2) with the arguments of SYS_SOCKET.
    unsigned *socket = low_memory();
    socket[0] = family, socket[1] = type, socket[2] = 0;
    try_foreign(attempt, 102, 1, (long)socket);
}

#else

enum foreign { FOREIGN_GETPID = 20, FOREIGN_MOUNT = 21, FOREIGN_PTRACE = 26, FOREIGN_CHMOD = 15, FOREIGN_UNSHARE = 337 };

#include <elf.h>

#define FOREIGN_BASE 0x10000

// A program of arm that makes one call and exits with 7.
struct arm_program {
    Elf32_Ehdr header;
    Elf32_Phdr segment;
    uint32_t code[8];
    uint32_t call[4]; // the number and three arguments
    char path[8];
};

static inline void try_foreign(const char *attempt, long number, long first, long second)
{
    struct arm_program program = {
        .header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS32, ELFDATA2LSB, EV_CURRENT},
                   .e_type = ET_EXEC,
                   .e_machine = EM_ARM,
                   .e_version = EV_CURRENT,
                   .e_entry = FOREIGN_BASE + offsetof(struct arm_program, code),
                   .e_phoff = offsetof(struct arm_program, segment),
                   .e_flags = EF_ARM_EABI_VER5,
                   .e_ehsize = sizeof(Elf32_Ehdr),
                   .e_phentsize = sizeof(Elf32_Phdr),
                   .e_phnum = 1},
        .segment = {.p_type = PT_LOAD,
                    .p_vaddr = FOREIGN_BASE,
                    .p_filesz = sizeof program,
                    .p_memsz = sizeof program,
                    .p_flags = PF_R | PF_X,
                    .p_align = 0x10000},
        .code =
            {
                0xe59f7018, // ldr r7, call[0]
                0xe59f0018, // ldr r0, call[1]
                0xe59f1018, // ldr r1, call[2]
                0xe59f2018, // ldr r2, call[3]
                0xef000000, // svc 0
                0xe3a07001, // mov r7, 1
                0xe3a00007, // mov r0, 7
                0xef000000, // svc 0: exit(7)
            },
        .call = {number, first, second, 0},
        .path = "/tmp",
    };

    int file = open("32-bit", O_CREAT | O_TRUNC | O_WRONLY, 0755);
    if (file < 0 || write(file, &program, sizeof program) != sizeof program)
        die("32-bit");
    close(file);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        answer(attempt, execv("./32-bit", (char *[]){"32-bit", NULL}));
        _exit(0);
    }
    print_end(attempt, child);
}

// A call whose first argument is the path /tmp.
static inline void try_foreign_path(const char *attempt, enum foreign number, long second)
{
    try_foreign(attempt, number, FOREIGN_BASE + offsetof(struct arm_program, path), second);
}

static inline void try_foreign_socket(const char *attempt, int family, int type)
{
    try_foreign(attempt, 281, family, type);
}

#endif
