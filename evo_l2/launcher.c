/* Runs one command within limits, and says how it ended.
 *
 *     launcher --parent=PID --status=FD [--cpu=S] [--memory=BYTES] [--file=BYTES] [--read=PATH]... [--write=PATH]... -- COMMAND...
 *     launcher --probe
 *
 * The command runs as a child of this process, which leads their process group. It may use so much processor time and
 * memory, write no file longer than it should, gain no privileges, open no file but below the given paths (where the kernel
 * has Landlock), and make no TCP connection. When the process that asked for it dies, the whole group is killed. What the
 * command started is killed when it ends, what has left the group or lost its parent too.
 *
 * One line goes to the status descriptor: "exit CODE CPU_US", "signal NUMBER CPU_US", or "error WHAT: REASON".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Landlock by number, so that neither an old libc nor old kernel headers matter. */
#define LANDLOCK_CREATE_RULESET 444
#define LANDLOCK_ADD_RULE 445
#define LANDLOCK_RESTRICT_SELF 446
#define RULE_PATH_BENEATH 1
#define VERSION_QUERY 1UL

#define FS_EXECUTE (1ULL << 0)
#define FS_WRITE_FILE (1ULL << 1)
#define FS_READ_FILE (1ULL << 2)
#define FS_READ_DIR (1ULL << 3)
#define FS_TRUNCATE (1ULL << 14)
#define FS_READ (FS_EXECUTE | FS_READ_FILE | FS_READ_DIR)
#define FS_OF_FILES (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE)

struct ruleset {
    uint64_t files, network, scopes;
};

struct path_rule {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

static int status_fd = -1;

static void say(const char *text)
{
    size_t length = strlen(text);
    if (status_fd >= 0 && write(status_fd, text, length) != (ssize_t)length)
        _exit(125);
}

static void fail(const char *what, const char *reason)
{
    char line[512];
    snprintf(line, sizeof line, "error %.200s: %.200s\n", what, reason);
    say(line);
    _exit(125);
}

static long landlock_version(void)
{
    long version = syscall(LANDLOCK_CREATE_RULESET, NULL, 0, VERSION_QUERY);
    return version < 0 ? 0 : version;
}

/* A path that does not exist needs no rule. */
static void allow(int set, const char *path, uint64_t rights)
{
    struct stat facts;
    struct path_rule rule = {rights, open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent < 0)
        return;
    if (fstat(rule.parent, &facts) == 0 && !S_ISDIR(facts.st_mode))
        rule.allowed &= FS_OF_FILES;
    if (syscall(LANDLOCK_ADD_RULE, set, RULE_PATH_BENEATH, &rule, 0UL) != 0)
        fail("cannot confine files", strerror(errno));
    close(rule.parent);
}

static void confine(char **options, int n_options)
{
    long version = landlock_version();
    if (version < 1)
        return;
    struct ruleset rules = {0, 0, 0};
    size_t size = offsetof(struct ruleset, network);
    rules.files = (1ULL << (version >= 5 ? 16 : version >= 3 ? 15 : version >= 2 ? 14 : 13)) - 1;
    if (version >= 4)
        rules.network = 3, size = offsetof(struct ruleset, scopes);
    if (version >= 6)
        rules.scopes = 3, size = sizeof rules;
    int set = (int)syscall(LANDLOCK_CREATE_RULESET, &rules, size, 0UL);
    if (set < 0)
        fail("cannot confine files", strerror(errno));
    for (int i = 0; i < n_options; i++) {
        if (strncmp(options[i], "--read=", 7) == 0)
            allow(set, options[i] + 7, FS_READ);
        if (strncmp(options[i], "--write=", 8) == 0)
            allow(set, options[i] + 8, rules.files & ~FS_EXECUTE);
    }
    allow(set, "/dev/null", FS_READ_FILE | FS_WRITE_FILE | (rules.files & FS_TRUNCATE));
    if (syscall(LANDLOCK_RESTRICT_SELF, set, 0UL) != 0)
        fail("cannot confine files", strerror(errno));
    close(set);
}

/* A shell or a batch system may have set a harder limit already; that one stays. */
static void limit(int resource, rlim_t soft, rlim_t hard)
{
    struct rlimit both;
    if (getrlimit(resource, &both) != 0)
        fail("cannot read a limit", strerror(errno));
    if (hard < both.rlim_max)
        both.rlim_max = hard;
    both.rlim_cur = soft < both.rlim_max ? soft : both.rlim_max;
    if (setrlimit(resource, &both) != 0)
        fail("cannot set a limit", strerror(errno));
}

static const char *value(char **options, int n_options, const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < n_options; i++)
        if (strncmp(options[i], name, length) == 0)
            return options[i] + length;
    return NULL;
}

static void run(char **options, int n_options, char **command, pid_t leader, const sigset_t *mask)
{
    const char *number;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != leader)
        _exit(125);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail("cannot give up privileges", strerror(errno));
    /* The soft limit's signal can be told from a kill for other reasons; the hard one is for a command that ignores it. */
    if ((number = value(options, n_options, "--cpu=")) != NULL)
        limit(RLIMIT_CPU, strtoull(number, NULL, 10), strtoull(number, NULL, 10) + 2);
    if ((number = value(options, n_options, "--memory=")) != NULL)
        limit(RLIMIT_AS, strtoull(number, NULL, 10), strtoull(number, NULL, 10));
    if ((number = value(options, n_options, "--file=")) != NULL)
        limit(RLIMIT_FSIZE, strtoull(number, NULL, 10), strtoull(number, NULL, 10));
    limit(RLIMIT_CORE, 0, 0);
    confine(options, n_options);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(command[0], command);
    fail(command[0], strerror(errno));
}

static void report(int status, const struct rusage *use)
{
    char line[96];
    long long cpu_us = (use->ru_utime.tv_sec + use->ru_stime.tv_sec) * 1000000LL + use->ru_utime.tv_usec + use->ru_stime.tv_usec;
    if (WIFSIGNALED(status))
        snprintf(line, sizeof line, "signal %d %lld\n", WTERMSIG(status), cpu_us);
    else
        snprintf(line, sizeof line, "exit %d %lld\n", WEXITSTATUS(status), cpu_us);
    say(line);
}

static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *name_end = strrchr(text, ')');
    int parent = -1;
    if (name_end == NULL || sscanf(name_end + 1, " %*c %d", &parent) != 1)
        return -1;
    return parent;
}

/* Kills all descendants: those whose parent ended are children of this process, their subreaper, and so on. */
static void kill_descendants(void)
{
    for (int round = 0; round < 1000; round++) {
        int n_found = 0;
        struct dirent *entry;
        DIR *folder = opendir("/proc");
        if (folder == NULL)
            return;
        while ((entry = readdir(folder)) != NULL)
            if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && parent_of(entry->d_name) == getpid()) {
                pid_t child = atoi(entry->d_name);
                kill(child, SIGKILL);
                waitpid(child, NULL, 0);
                n_found++;
            }
        closedir(folder);
        if (n_found == 0)
            return;
    }
}

int main(int argc, char **argv)
{
    int n_options = 0;
    if (argc == 2 && strcmp(argv[1], "--probe") == 0) {
        printf("landlock=%ld\n", landlock_version());
        return 0;
    }
    while (1 + n_options < argc && strcmp(argv[1 + n_options], "--") != 0)
        n_options++;
    char **options = argv + 1, **command = argv + n_options + 2;
    const char *parent = value(options, n_options, "--parent="), *status = value(options, n_options, "--status=");
    if (parent == NULL || status == NULL || n_options + 2 >= argc)
        return 125;
    status_fd = atoi(status);
    fcntl(status_fd, F_SETFD, FD_CLOEXEC);

    sigset_t waited, before;
    sigemptyset(&waited);
    sigaddset(&waited, SIGTERM);
    sigaddset(&waited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &waited, &before);
    sigdelset(&before, SIGTERM);
    sigdelset(&before, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (getppid() != (pid_t)atol(parent))
        return 125;
    pid_t leader = getpid(), child = fork();
    if (child < 0)
        fail("cannot start a process", strerror(errno));
    if (child == 0)
        run(options, n_options, command, leader, &before);
    for (;;) {
        int got = 0, ended = 0;
        struct rusage use;
        sigwait(&waited, &got);
        if (got == SIGTERM) {
            kill_descendants();
            kill(0, SIGKILL);
        }
        if (wait4(child, &ended, WNOHANG, &use) == child) {
            report(ended, &use);
            kill_descendants();
            return 0;
        }
        while (waitpid(-1, &ended, WNOHANG) > 0)
            ;
    }
}
