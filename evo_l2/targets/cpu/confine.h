/* What a process gives up before it runs code that nobody has read: files, network, system calls, memory.
 *
 * Landlock and seccomp are used through raw system calls with their own constants, so that an old libc or old kernel
 * headers do not matter; where the running kernel has neither, the functions say so and the caller goes on without.
 */
#ifndef EVO_CONFINE_H
#define EVO_CONFINE_H

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define EVO_AUDIT_ARCH AUDIT_ARCH_X86_64
#define EVO_LAST_SYSCALL 0x3fffffff /* above it is the x32 interface, whose numbers would slip past the lists */
#elif defined(__aarch64__)
#define EVO_AUDIT_ARCH AUDIT_ARCH_AARCH64
#define EVO_LAST_SYSCALL 0x7fffffff
#endif

#ifndef SECCOMP_FILTER_FLAG_SPEC_ALLOW
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW 4
#endif
#ifndef SECCOMP_RET_KILL_PROCESS
#define SECCOMP_RET_KILL_PROCESS 0x80000000U
#endif

#define EVO_MOST_INSTRUCTIONS 256

/* Everything the zygote and the dynamic loader need. What is not listed fails with EPERM: a loader of another version that
 * probes for something then goes on, where a kill would blame every kernel for it. */
static const int evo_zygote_syscalls[] = {
    SYS_read, SYS_write, SYS_close, SYS_openat, SYS_fstat, SYS_newfstatat, SYS_lseek, SYS_pread64, SYS_mmap, SYS_munmap,
    SYS_mprotect, SYS_madvise, SYS_brk, SYS_clone, SYS_wait4, SYS_waitid, SYS_kill, SYS_ptrace, SYS_pipe2, SYS_exit_group,
    SYS_exit, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_rt_sigreturn, SYS_rt_sigtimedwait, SYS_restart_syscall, SYS_prctl,
    SYS_seccomp, SYS_prlimit64, SYS_setrlimit, SYS_getrlimit, SYS_getpid, SYS_getppid, SYS_gettid, SYS_getrandom,
    SYS_clock_gettime, SYS_futex, SYS_set_robust_list, SYS_set_tid_address, SYS_sched_yield, SYS_ppoll,
#ifdef SYS_clone3
    SYS_clone3,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef SYS_open
    SYS_open, SYS_stat, SYS_access, SYS_fork, SYS_arch_prctl,
#endif
};

/* What the dynamic loader needs to load one library in a child, and to take on the candidate's filter after that. */
static const int evo_loading_syscalls[] = {
    SYS_read, SYS_close, SYS_openat, SYS_fstat, SYS_newfstatat, SYS_lseek, SYS_pread64, SYS_mmap, SYS_munmap, SYS_mprotect,
    SYS_madvise, SYS_brk, SYS_futex, SYS_getrandom, SYS_seccomp, SYS_exit_group, SYS_exit,
#ifdef SYS_open
    SYS_open, SYS_stat, SYS_access,
#endif
};

#ifdef EVO_AUDIT_ARCH

struct evo_filter {
    struct sock_filter code[EVO_MOST_INSTRUCTIONS];
    unsigned short n;
};

static void evo_emit(struct evo_filter *f, uint16_t op, uint8_t jump_true, uint8_t jump_false, uint32_t value)
{
    if (f->n < EVO_MOST_INSTRUCTIONS)
        f->code[f->n++] = (struct sock_filter){op, jump_true, jump_false, value};
}

static void evo_filter_begin(struct evo_filter *f)
{
    f->n = 0;
    evo_emit(f, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch));
    evo_emit(f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, EVO_AUDIT_ARCH);
    evo_emit(f, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
    evo_emit(f, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    evo_emit(f, BPF_JMP | BPF_JGT | BPF_K, 0, 1, EVO_LAST_SYSCALL);
    evo_emit(f, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
}

static void evo_filter_allow(struct evo_filter *f, int number)
{
    evo_emit(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)number);
    evo_emit(f, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
}

/* Allows a call only on one descriptor; the accumulator holds the call's number again afterwards. Both of Linux's targets
 * here are little-endian, so the low half of an argument comes first. */
static void evo_filter_allow_on(struct evo_filter *f, int number, int descriptor)
{
    evo_emit(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, (uint32_t)number);
    evo_emit(f, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[0]));
    evo_emit(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)descriptor);
    evo_emit(f, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    evo_emit(f, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
}

/* Without SPEC_ALLOW some kernels switch speculative store bypass off for filtered processes, which would slow the
 * candidate against a baseline that runs unfiltered. Kernels that do not know the flag do not do it either. */
static int evo_filter_install(struct evo_filter *f, uint32_t otherwise)
{
    evo_emit(f, BPF_RET | BPF_K, 0, 0, otherwise);
    struct sock_fprog program = {f->n, f->code};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0)
        return 0;
    return errno == EINVAL ? (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) : -1;
}

#endif

/* The zygote's filter. Returns 0 when it is in force. */
static int evo_confine_zygote(void)
{
#ifdef EVO_AUDIT_ARCH
    struct evo_filter filter;
    evo_filter_begin(&filter);
    for (size_t i = 0; i < sizeof evo_zygote_syscalls / sizeof *evo_zygote_syscalls; i++)
        evo_filter_allow(&filter, evo_zygote_syscalls[i]);
    return evo_filter_install(&filter, SECCOMP_RET_ERRNO | EPERM);
#else
    errno = ENOSYS;
    return -1;
#endif
}

/* The filter under which a child loads a candidate's library, in case that runs code. Returns 0 when it is in force. */
static int evo_confine_loading(int ready)
{
#ifdef EVO_AUDIT_ARCH
    struct evo_filter filter;
    evo_filter_begin(&filter);
    for (size_t i = 0; i < sizeof evo_loading_syscalls / sizeof *evo_loading_syscalls; i++)
        evo_filter_allow(&filter, evo_loading_syscalls[i]);
    evo_filter_allow_on(&filter, SYS_write, ready);
    return evo_filter_install(&filter, SECCOMP_RET_ERRNO | EPERM);
#else
    (void)ready;
    errno = ENOSYS;
    return -1;
#endif
}

/* The filter under which a candidate runs: read the go, say ready, end; anything else kills. Returns 0 when in force. */
static int evo_confine_candidate(int go, int ready)
{
#ifdef EVO_AUDIT_ARCH
    struct evo_filter filter;
    evo_filter_begin(&filter);
    evo_filter_allow(&filter, SYS_exit_group);
    evo_filter_allow_on(&filter, SYS_read, go);
    evo_filter_allow_on(&filter, SYS_write, ready);
    return evo_filter_install(&filter, SECCOMP_RET_KILL_PROCESS);
#else
    (void)go, (void)ready;
    errno = ENOSYS;
    return -1;
#endif
}

#define EVO_LANDLOCK_CREATE 444
#define EVO_LANDLOCK_ADD 445
#define EVO_LANDLOCK_RESTRICT 446

struct evo_landlock_rules {
    uint64_t files, network, scopes;
};

struct evo_landlock_path {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

static long evo_landlock_version(void)
{
    return syscall(EVO_LANDLOCK_CREATE, NULL, 0, 1UL);
}

/* Denies every file but reading one, and TCP, signals and abstract sockets outwards where the kernel knows how.
 * Returns the interface's version, 0 without Landlock, -1 when it is there and fails. */
static int evo_landlock(const char *library)
{
    long version = evo_landlock_version();
    if (version < 1)
        return 0;
    struct evo_landlock_rules rules = {0, 0, 0};
    rules.files = (1ULL << (version >= 5 ? 16 : version >= 3 ? 15 : version >= 2 ? 14 : 13)) - 1;
    size_t size = sizeof rules.files;
    if (version >= 4)
        rules.network = 3, size = offsetof(struct evo_landlock_rules, scopes);
    if (version >= 6)
        rules.scopes = 3, size = sizeof rules;
    int set = (int)syscall(EVO_LANDLOCK_CREATE, &rules, size, 0UL);
    if (set < 0)
        return -1;
    struct evo_landlock_path path = {4 /* read a file */, open(library, O_PATH | O_CLOEXEC)};
    int bad = path.parent >= 0 && syscall(EVO_LANDLOCK_ADD, set, 1, &path, 0UL) != 0;
    bad |= syscall(EVO_LANDLOCK_RESTRICT, set, 0UL) != 0;
    if (path.parent >= 0)
        close(path.parent);
    close(set);
    return bad ? -1 : (int)version;
}

static int evo_limit(int resource, rlim_t soft, rlim_t hard)
{
    struct rlimit limit = {soft, hard};
    return setrlimit(resource, &limit);
}

#endif
