/* SPDX-License-Identifier: Apache-2.0 */
#include "api/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LOCK "lock"
#define LOCK_NEW "lock.new" /* not locked yet: whoever meets it leaves the folder alone */
#define SOCKET "controller"
#define YOUNG_S 60

const char *tqi_folder_base(void)
{
    const char *base = getenv("XDG_RUNTIME_DIR");

    if (!base || *base != '/' || strlen(base) > 60 || access(base, W_OK) != 0)
        base = "/tmp";
    return base;
}

/* ---- making and removing --------------------------------------------------------------------- */

/* The lock gets its name once it is held, so that it is never seen without its holder. -1 where the
 * file system has no locks. */
static int lock_make(int dir_fd)
{
    int fd = openat(dir_fd, LOCK_NEW, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && renameat(dir_fd, LOCK_NEW, dir_fd, LOCK) == 0)
        return fd;
    close(fd);
    (void)unlinkat(dir_fd, LOCK_NEW, 0);
    return -1;
}

tq_status_t tqi_folder_make(const char *base, tqi_folder_t *folder, tqi_err_t *err)
{
    int dir_fd;

    folder->lock_fd = -1;
    snprintf(folder->path, sizeof folder->path, "%s/tq-%d-XXXXXX", base, (int)getpid());
    if (!mkdtemp(folder->path)) { /* mode 0700 */
        int why = errno;

        folder->path[0] = 0;
        return tqi_fail(err, TQ_E_SYSTEM,
                        "cannot make a folder in %s for the store's sockets: %s; set "
                        "XDG_RUNTIME_DIR to a folder of yours",
                        base, strerror(why));
    }
    dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd >= 0) {
        folder->lock_fd = lock_make(dir_fd);
        close(dir_fd);
    }
    return TQ_OK;
}

/* "controller", "unit-12", "unit-12.data", the lock. */
static bool is_ours(const char *name)
{
    size_t len;

    if (strcmp(name, SOCKET) == 0 || strcmp(name, LOCK) == 0 || strcmp(name, LOCK_NEW) == 0)
        return true;
    if (strncmp(name, "unit-", 5) != 0)
        return false;
    len = strspn(name + 5, "0123456789");
    return len > 0 && (name[5 + len] == 0 || strcmp(name + 5 + len, ".data") == 0);
}

static void empty(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(dir)))
        if (is_ours(entry->d_name))
            (void)unlinkat(dir_fd, entry->d_name, 0);
    closedir(dir);
}

void tqi_folder_remove(tqi_folder_t *folder)
{
    int dir_fd;

    if (!folder->path[0])
        return;
    dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd >= 0) {
        empty(dir_fd);
        close(dir_fd);
    }
    (void)rmdir(folder->path);
    if (folder->lock_fd >= 0)
        close(folder->lock_fd);
    folder->path[0] = 0;
    folder->lock_fd = -1;
}

/* ---- those of the dead ----------------------------------------------------------------------- */

/* The process of a folder's name, or 0 for a name that is no such folder's. */
static pid_t pid_of(const char *name)
{
    char *end;
    long pid;

    if (strncmp(name, "tq-", 3) != 0 || name[3] < '1' || name[3] > '9')
        return 0;
    pid = strtol(name + 3, &end, 10);
    return *end == '-' && strlen(end + 1) == 6 && pid <= INT32_MAX ? (pid_t)pid : 0;
}

static bool is_answered(const char *base, const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int len = snprintf(at.sun_path, sizeof at.sun_path, "%s/%s/" SOCKET, base, name);
    int fd;
    bool is_open;

    if (len < 0 || (size_t)len >= sizeof at.sun_path)
        return true; /* it could not be asked */
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return true;
    is_open = connect(fd, (struct sockaddr *)&at, sizeof at) == 0 ||
              (errno != ECONNREFUSED && errno != ENOENT);
    close(fd);
    return is_open;
}

/* Without a lock: made before there were any, or being made just now; perhaps by a process of another
 * pid namespace, whose pid says nothing here. */
static bool is_dead_without_lock(const char *base, const char *name, const struct stat *st,
                                 pid_t pid)
{
    return time(NULL) - st->st_mtime > YOUNG_S && kill(pid, 0) != 0 && errno == ESRCH &&
           !is_answered(base, name);
}

/* Removes the folder if it is one, this user's own, and its store is dead. */
static bool sweep_one(const char *base, int base_fd, const char *name, pid_t pid)
{
    int dir_fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int lock_fd = -1;
    struct stat st;
    bool is_dead = false;

    if (dir_fd < 0)
        return false;
    if (fstat(dir_fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 077) == 0) {
        lock_fd = openat(dir_fd, LOCK, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        /* Held from here on, so that of two who sweep one does. */
        is_dead = lock_fd >= 0 ? flock(lock_fd, LOCK_EX | LOCK_NB) == 0
                               : errno == ENOENT && is_dead_without_lock(base, name, &st, pid);
    }
    if (is_dead)
        empty(dir_fd);
    close(dir_fd);
    is_dead = is_dead && unlinkat(base_fd, name, AT_REMOVEDIR) == 0;
    if (lock_fd >= 0)
        close(lock_fd);
    return is_dead;
}

unsigned tqi_folder_sweep(const char *base)
{
    DIR *dir = opendir(base);
    const struct dirent *entry;
    unsigned cnt = 0;

    if (!dir)
        return 0;
    while ((entry = readdir(dir))) {
        pid_t pid = pid_of(entry->d_name);

        if (pid > 0)
            cnt += sweep_one(base, dirfd(dir), entry->d_name, pid);
    }
    closedir(dir);
    return cnt;
}
