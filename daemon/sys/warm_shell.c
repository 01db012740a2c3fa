// A shell that has been executed before its command is known. docs/isolation.md, "Warm shells",
// tells what it is for; this file is how it works. Linux on x86-64, glibc.
//
// The dynamic loader of a shell loads this file as an audit library (rtld-audit(7)), before the
// shell's own libraries. `la_version` maps a copy of this code that stays, makes the shell's first
// instruction jump to it, and answers 0: the loader then unloads the library and goes on as always.
// So all is done that an execution costs when the shell is about to start, in `wait_for_command`.
//
//   template                              copy
//     tells the init that it is ready
//     waits for the init
//     clone(2) ───────────────────────▶   new secrets of its own
//     waits for the init                  tells the init its id
//                                         reports Ready to the daemon
//                                         receives a command (image.rs)
//                                         arguments, environment, streams, directory, limits
//                                         unmaps this code and starts the shell
//
// The template never receives a command, so no copy knows another's.
//
// No libc: it is not there yet. A template that cannot be ready ends, and the init starts the
// command's process in the ordinary way. If a copy ends without a word, the init ends too.

#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

// Descriptors of the template (warm_shell.rs). A copy has the first and the last.
enum { CONTROL = 3, LIBRARY = 4, REQUESTS = 5, REPLIES = 6 };

// Steps of starting a command (stage.rs).
enum { STAGE_RESOURCE_LIMITS = 25, STAGE_RECEIVE_REQUEST = 29, STAGE_STANDARD_STREAMS = 32 };
enum { STAGE_CHANGE_DIRECTORY = 33, STAGE_EXECUTE = 34 };

enum { PAGE = 4096, STACK_BYTES = 4 * PAGE, MAX_IMAGE = 64 << 10 };

// The command, as the daemon lays it out (image.rs).
struct image_header {
  uint32_t magic, flags, length, cwd, programs, program_count, argv, argc, envp, envc;
  uint32_t unused[6];
  uint64_t processes, open_files, open_files_hard, file_size, cpu;
};
enum { MAGIC = 0x6a696704, FLAG_STDIN = 4, FLAG_WARM_SHELLS = 32 };

// The report Ready (wire.rs).
struct ready {
  uint64_t kind, vpid, shell, unused[2];
};

struct context {
  // The assembly below knows the places of these eight.
  uint64_t entry_stub, stack_pointer, finish, stub_stack, entry, region, region_bytes, unmap_gadget;
  struct prctl_mm_map memory_map;
  // What the init tells the template for each copy (warm_shell.rs).
  struct request { uint64_t other_processes, shell, receive_mark; } request;
  const char *program;
  uint64_t tid_address, robust_list, robust_list_bytes;
  char text[2 * PAGE];
  char image[MAX_IMAGE];
};

#define HIDDEN __attribute__((visibility("hidden")))
extern char __ehdr_start[] HIDDEN, stub_entry[] HIDDEN;

// From the shell's first instruction: to `wait_for_command` on another stack, and back with the
// registers that the dynamic loader has left. The last system call unmaps this code, so it is one
// in the vDSO or the loader, which returns to the shell.
__asm__(".globl stub_entry\n.hidden stub_entry\n.type stub_entry,@function\n"
        "stub_entry:\n"
        "  mov %rsp, 8(%r11)\n"
        "  mov %rdx, 16(%r11)\n"
        "  mov 24(%r11), %rsp\n"
        "  mov %r11, %rbx\n"
        "  mov %r11, %rdi\n"
        "  xor %ebp, %ebp\n"
        "  call wait_for_command\n"
        "  mov 16(%rbx), %rdx\n"
        "  mov 8(%rbx), %rsp\n"
        "  push 32(%rbx)\n"
        "  mov 40(%rbx), %rdi\n"
        "  mov 48(%rbx), %rsi\n"
        "  mov 56(%rbx), %rcx\n"
        "  mov $11, %eax\n" // munmap
        "  xor %ebx, %ebx\n"
        "  xor %r11d, %r11d\n"
        "  jmp *%rcx\n");

static long call6(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                  uint64_t f) {
  long result;
  register uint64_t r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#define CALL(number, a, b, c) \
  call6(SYS_##number, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), 0, 0, 0)

static _Noreturn void leave(int code) {
  for (;;)
    CALL(exit_group, code, 0, 0);
}

static int equal(const char *left, const char *right) {
  while (*left && *left == *right)
    left++, right++;
  return *left == *right;
}

static uint64_t up_to_page(uint64_t address) { return (address + PAGE - 1) & -(uint64_t)PAGE; }

// Reads a file of /proc. Returns whether it is there and fits.
static int read_text(const char *path, char *text, long size) {
  long fd = CALL(open, path, O_RDONLY | O_CLOEXEC, 0), length = 0, part = fd;
  while (length < size - 1 && (part = CALL(read, fd, text + length, size - 1 - length)) > 0)
    length += part;
  CALL(close, fd, 0, 0);
  text[length] = 0;
  return part == 0;
}

// === In the loader ===

// Makes the first instruction at `entry` a jump to the stub: mov $context, %r11; jmp *(%r11).
static int divert_entry(uint64_t phdr, uint64_t count, struct context *context) {
  Elf64_Phdr *header = (Elf64_Phdr *)phdr;
  uint64_t bias = 0, entry = context->entry;
  for (uint64_t i = 0; i < count; i++)
    if (header[i].p_type == PT_PHDR)
      bias = phdr - header[i].p_vaddr;
  for (uint64_t i = 0; i < count; i++) {
    if (header[i].p_type != PT_LOAD || !(header[i].p_flags & PF_X))
      continue;
    uint64_t start = (bias + header[i].p_vaddr) & ~(uint64_t)(PAGE - 1);
    uint64_t end = up_to_page(bias + header[i].p_vaddr + header[i].p_filesz);
    if (entry < start || entry + 13 > end)
      continue;
    if (CALL(mprotect, start, end - start, PROT_READ | PROT_WRITE))
      return 0;
    unsigned char *code = (unsigned char *)entry;
    code[0] = 0x49, code[1] = 0xbb;
    *(uint64_t *)(code + 2) = (uint64_t)context;
    code[10] = 0x41, code[11] = 0xff, code[12] = 0x23;
    return CALL(mprotect, start, end - start, PROT_READ | PROT_EXEC) == 0;
  }
  return 0;
}

// Finds the instructions `syscall; ret` in the code of an image in memory.
static uint64_t find_gadget(uint64_t base) {
  if (!base)
    return 0;
  Elf64_Ehdr *file = (Elf64_Ehdr *)base;
  Elf64_Phdr *header = (Elf64_Phdr *)(base + file->e_phoff);
  for (int i = 0; i < file->e_phnum; i++) {
    if (header[i].p_type != PT_LOAD || !(header[i].p_flags & PF_X))
      continue;
    const volatile unsigned char *code = (unsigned char *)(base + header[i].p_vaddr);
    for (uint64_t at = 0; at + 3 <= header[i].p_filesz; at++)
      if (code[at] == 0x0f && code[at + 1] == 0x05 && code[at + 2] == 0xc3)
        return (uint64_t)(code + at);
  }
  return 0;
}

// The dynamic loader asks for the version of the audit interface. If anything is unexpected, the
// shell runs its command, which only exits.
unsigned la_version(unsigned version) {
  (void)version;
  uint64_t vector[2 * 40], entry = 0, phdr = 0, count = 0, vdso = 0, base = 0;
  long fd = CALL(open, "/proc/self/auxv", O_RDONLY | O_CLOEXEC, 0);
  long bytes = fd < 0 ? 0 : CALL(read, fd, vector, sizeof vector);
  CALL(close, fd, 0, 0);
  for (long i = 0; i < bytes / 16; i++) {
    uint64_t value = vector[2 * i + 1];
    switch (vector[2 * i]) {
    case AT_ENTRY: entry = value; break;
    case AT_PHDR: phdr = value; break;
    case AT_PHNUM: count = value; break;
    case AT_SYSINFO_EHDR: vdso = value; break;
    case AT_BASE: base = value; break;
    }
  }
  uint64_t gadget = find_gadget(vdso) ?: find_gadget(base);
  if (!entry || !phdr || !gadget)
    return 0;

  // Below the program, where the loader maps nothing.
  Elf64_Ehdr *own = (Elf64_Ehdr *)__ehdr_start;
  uint64_t code_bytes = up_to_page(((Elf64_Phdr *)(__ehdr_start + own->e_phoff))->p_filesz);
  uint64_t region_bytes = code_bytes + up_to_page(sizeof(struct context)) + STACK_BYTES;
  uint64_t region = (phdr & ~(uint64_t)0x1fffff) - 0x400000;
  if ((uint64_t)(stub_entry - __ehdr_start) >= code_bytes)
    return 0; // a linker that puts the code elsewhere
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  if (call6(SYS_mmap, region, region_bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != (long)region)
    return 0;
  if (call6(SYS_mmap, region, code_bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, LIBRARY,
            0) != (long)region)
    return 0;

  struct context *context = (struct context *)(region + code_bytes);
  context->entry_stub = region + (uint64_t)(stub_entry - __ehdr_start);
  context->stub_stack = region + region_bytes;
  context->entry = entry;
  context->region = region;
  context->region_bytes = region_bytes;
  context->unmap_gadget = gadget;
  // Without the jump, the shell runs its command, which only exits.
  divert_entry(phdr, count, context);
  return 0;
}

// === In the template ===

// The numbers of a line of /proc/self/stat after the name, counted as in proc_pid_stat(5).
static uint64_t stat_field(const char *text, int number) {
  const char *at = text;
  for (const char *c = text; *c; c++)
    if (*c == ')')
      at = c + 2;
  for (int field = 3; field < number; field++) {
    while (*at && *at != ' ')
      at++;
    at += *at == ' ';
  }
  uint64_t value = 0;
  while (*at >= '0' && *at <= '9')
    value = 10 * value + (uint64_t)(*at++ - '0');
  return value;
}

// Describes the memory to prctl(2), as the kernel has it now.
static int read_memory_map(struct context *context) {
  // Where the first eleven members of the structure are in /proc/self/stat. That of `brk` is not.
  static const unsigned char fields[] = {26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51};
  if (!read_text("/proc/self/stat", context->text, sizeof context->text))
    return 0;
  uint64_t *members = (uint64_t *)&context->memory_map;
  for (unsigned i = 0; i < sizeof fields; i++)
    members[i] = fields[i] ? stat_field(context->text, fields[i]) : 0;
  context->memory_map.brk = (uint64_t)CALL(brk, 0, 0, 0);
  context->memory_map.exe_fd = (uint32_t)-1;
  return 1;
}

static long set_memory_map(struct context *context) {
  return call6(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, (uint64_t)&context->memory_map,
               sizeof context->memory_map, 0, 0);
}

// Keeps the paths of all mapped files in `text`: the shell, its libraries and the loader. Each ends
// with a null byte, the last with two.
static int list_files(struct context *context) {
  if (!read_text("/proc/self/maps", context->text, sizeof context->text))
    return 0;
  char *last = 0, *out = context->text;
  for (char *line = context->text, *next; *line; line = next) {
    char *path = 0;
    for (next = line; *next && *next != '\n'; next++)
      if (*next == '/' && !path)
        path = next;
    next += *next == '\n' ? (*next = 0, 1) : 0;
    if (!path || equal(path, "/memfd:jig-shell (deleted)") || (last && equal(path, last)))
      continue;
    for (last = out; (*out++ = *path++);)
      ;
  }
  *out = 0;
  return last != 0;
}

// Sums up which files have the names of those that are mapped. A shell is not copied any more once
// it or a library was replaced.
static uint64_t identify_files(const struct context *context) {
  uint64_t sum = 0;
  for (const char *path = context->text; *path; path++) {
    struct stat status = {0};
    uint64_t failed = CALL(stat, path, &status, 0) != 0;
    uint64_t parts[] = {failed, status.st_dev, status.st_ino, (uint64_t)status.st_ctim.tv_sec,
                        (uint64_t)status.st_ctim.tv_nsec};
    for (int i = 0; i < 5; i++)
      sum = (sum ^ parts[i]) * 0x100000001b3; // FNV-1a
    while (*path)
      path++;
  }
  return sum;
}

// Sends the init a message.
static void reply(int64_t first, int64_t second) {
  int64_t message[2] = {first, second};
  CALL(write, REPLIES, message, sizeof message);
}

// Makes a copy for each request of the init. Returns in the copy.
static void make_copies(struct context *context) {
  uint64_t files = identify_files(context);
  reply(0, 0);
  for (;;) {
    struct request *request = &context->request;
    if (CALL(read, REQUESTS, request, sizeof *request) != sizeof *request ||
        identify_files(context) != files)
      leave(0);
    long copy = CALL(clone, 0x8000 /* CLONE_PARENT */ | 17 /* SIGCHLD */, 0, 0);
    if (copy < 0)
      leave(0);
    if (copy == 0)
      return;
  }
}

// === In a copy ===

// Does what fork(3) does in a child, and replaces the secrets of the template.
static int become_process(struct context *context, uint64_t random, int64_t *process) {
  *process = CALL(set_tid_address, context->tid_address, 0, 0);
  *(int *)context->tid_address = (int)*process;
  CALL(set_robust_list, context->robust_list, context->robust_list_bytes, 0);
  uint64_t *secrets = (uint64_t *)random;
  if (!secrets || CALL(getrandom, secrets, 16, 0) != 16)
    return 0;
  // The guards of the stack and of pointers in `tcbhead_t` of glibc. Nothing was protected yet.
  __asm__ volatile("mov %0, %%fs:0x28\n mov %1, %%fs:0x30" ::"r"(secrets[0] & ~0xffUL),
                   "r"(secrets[1]));
  context->memory_map.brk = (uint64_t)CALL(brk, 0, 0, 0);
  return 1;
}

// Tells the init what became of a copy: the step that it has reached, and the error there. At step 0
// there is no command.
static _Noreturn void fail(uint64_t stage, long result) {
  reply((int64_t)stage, -result);
  leave(127);
}

static void check(uint64_t stage, long result) {
  if (result < 0)
    fail(stage, result);
}

static void limit(int resource, uint64_t current, uint64_t maximum) {
  uint64_t limits[2] = {current, maximum};
  check(STAGE_RESOURCE_LIMITS, CALL(setrlimit, resource, limits, 0));
}

// As `set_rlimits` of command_process.rs.
static void set_limits(const struct context *context, const struct image_header *header) {
  uint64_t hard[2] = {0, UINT64_MAX};
  CALL(getrlimit, RLIMIT_NPROC, hard, 0);
  uint64_t processes = header->processes + context->request.other_processes;
  if (processes < header->processes || processes > hard[1])
    processes = hard[1];
  limit(RLIMIT_NPROC, processes, processes);
  limit(RLIMIT_NOFILE, header->open_files, header->open_files_hard);
  limit(RLIMIT_FSIZE, header->file_size, header->file_size);
  if (header->cpu)
    limit(RLIMIT_CPU, header->cpu, header->cpu + 1);
}

// Receives the command, and connects its standard streams.
static void receive(struct context *context) {
  char control[CMSG_SPACE(3 * sizeof(int))] __attribute__((aligned(8)));
  struct iovec vector = {context->image, sizeof context->image};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = sizeof control};
  // Marked for the filter (marked_receive.rs). The mark is in no register or memory of the shell.
  uint64_t mark = context->request.receive_mark;
  long length = CALL(recvmsg, CONTROL | (mark & ~0xffffffffUL), &message, mark << 32);
  struct image_header *header = (struct image_header *)context->image;
  if (length < (long)sizeof *header)
    fail(0, -length); // the daemon wants another process, or none
  struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
  uint64_t count = header->flags & FLAG_STDIN ? 3 : 2;
  if (header->magic != MAGIC || header->flags & ~(FLAG_STDIN | FLAG_WARM_SHELLS) ||
      header->length != (uint64_t)length || header->program_count != 1 ||
      !equal(context->image + header->programs, context->program) || !rights ||
      rights->cmsg_len != CMSG_LEN(count * sizeof(int)))
    fail(STAGE_RECEIVE_REQUEST, -74 /* EBADMSG */);

  const int *descriptors = (int *)CMSG_DATA(rights);
  long input = count == 3 ? *descriptors++ : CALL(open, "/dev/null", O_RDONLY | O_CLOEXEC, 0);
  check(STAGE_STANDARD_STREAMS, input);
  check(STAGE_STANDARD_STREAMS, CALL(dup3, input, 0, 0));
  check(STAGE_STANDARD_STREAMS, CALL(dup3, descriptors[0], 1, 0));
  check(STAGE_STANDARD_STREAMS, CALL(dup3, descriptors[1], 2, 0));
}

// Writes the initial stack of the shell (System V ABI, "Process initialization") below that of the
// template, and the strings that it points to.
static void write_stack(struct context *context, const uint64_t *vector, uint64_t *old_argv,
                        uint64_t old_argc, uint64_t *old_envp, uint64_t envp_room) {
  struct image_header *header = (struct image_header *)context->image;
  uint64_t *argv = (uint64_t *)(context->image + header->argv);
  uint64_t *envp = (uint64_t *)(context->image + header->envp);
  uint64_t strings = argv[0], bytes = header->length - strings;
  uint64_t environment = header->envc ? envp[0] : header->length;
  uint64_t vector_words = 2;
  for (const uint64_t *entry = vector; entry[0]; entry += 2)
    vector_words += 2;

  char *target = (char *)((context->stack_pointer - bytes) & ~15UL);
  for (uint64_t i = 0; i < bytes; i++)
    target[i] = context->image[strings + i];
  uint64_t words = 1 + header->argc + 1 + header->envc + 1 + vector_words;
  uint64_t *stack = (uint64_t *)(((uint64_t)target - 8 * words) & ~15UL), *word = stack;

  // The libc has the addresses of the template's lists already.
  *word++ = header->argc;
  for (uint64_t i = 0; i < header->argc; i++) {
    *word = (uint64_t)target + argv[i] - strings;
    if (i < old_argc)
      old_argv[i] = *word;
    word++;
  }
  *word++ = 0;
  for (uint64_t i = 0; i < envp_room; i++)
    old_envp[i] = i < header->envc ? *word++ = (uint64_t)target + envp[i] - strings : 0;
  *word++ = 0;
  for (uint64_t i = 0; i < vector_words; i++)
    *word++ = vector[i];

  context->stack_pointer = (uint64_t)stack;
  context->memory_map.arg_start = (uint64_t)target;
  context->memory_map.arg_end = (uint64_t)target + environment - strings;
  context->memory_map.env_start = context->memory_map.arg_end;
  context->memory_map.env_end = (uint64_t)target + bytes;
}

__attribute__((used)) HIDDEN void wait_for_command(struct context *context) {
  uint64_t page = context->entry & ~(uint64_t)(PAGE - 1);
  // The page of the file again, without the jump.
  CALL(madvise, page, up_to_page(context->entry + 13) - page, MADV_DONTNEED);
  CALL(close, LIBRARY, 0, 0);

  uint64_t *stack = (uint64_t *)context->stack_pointer;
  uint64_t argc = stack[0], *argv = stack + 1, *envp = argv + argc + 1, envp_room = 0;
  while (envp[envp_room])
    envp_room++;
  uint64_t *vector = envp + envp_room + 1, random = 0;
  for (uint64_t *entry = vector; entry[0]; entry += 2) {
    if (entry[0] == AT_RANDOM)
      random = entry[1];
    if (entry[0] == AT_EXECFN)
      context->program = (const char *)entry[1];
  }
  // What the template was executed with is not for commands to see. The libc keeps argv[0].
  for (uint64_t i = 1; i < argc; i++)
    for (char *c = (char *)argv[i]; *c; c++)
      *c = 0;
  for (uint64_t i = 0; i < envp_room; i++)
    for (char *c = (char *)envp[i]; *c; c++)
      *c = 0;

  // Not dumpable: other processes cannot read its memory or open its files.
  call6(SYS_prctl, PR_SET_NAME, (uint64_t) "jig-shell", 0, 0, 0, 0);
  call6(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0, 0);
  if (call6(SYS_prctl, PR_GET_TID_ADDRESS, (uint64_t)&context->tid_address, 0, 0, 0, 0) ||
      CALL(get_robust_list, 0, &context->robust_list, &context->robust_list_bytes) ||
      !context->program || !read_memory_map(context) || set_memory_map(context) ||
      !list_files(context))
    leave(125);
  make_copies(context);

  CALL(close, REQUESTS, 0, 0);
  int64_t process;
  if (!become_process(context, random, &process) || CALL(setpgid, 0, 0, 0))
    leave(125);
  reply(process, 0);
  struct ready ready = {.kind = 1, .vpid = (uint64_t)process, .shell = context->request.shell};
  if (CALL(write, CONTROL, &ready, sizeof ready) != sizeof ready)
    leave(125);

  receive(context);
  const struct image_header *header = (struct image_header *)context->image;
  write_stack(context, vector, argv, argc, envp, envp_room);
  check(STAGE_EXECUTE, set_memory_map(context));
  check(STAGE_CHANGE_DIRECTORY, CALL(chdir, context->image + header->cwd, 0, 0));
  set_limits(context, header);

  const char *name = context->program;
  for (const char *c = name; *c; c++)
    name = *c == '/' ? c + 1 : name;
  call6(SYS_prctl, PR_SET_NAME, (uint64_t)name, 0, 0, 0, 0);
  call6(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0, 0);
  // From here on, nothing can fail: the end of the process is that of the command.
  reply(STAGE_EXECUTE, 0);
  CALL(close_range, CONTROL, ~0U, 0);
}
