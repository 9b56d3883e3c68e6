/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char boot_id[64];
static char host[256];

static bool read_line(const char *path, char *out, size_t len)
{
    FILE *file = fopen(path, "re");
    out[0] = 0;
    if (!file)
        return false;
    bool is_read = fgets(out, (int)len, file) != NULL;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
    return is_read;
}

static void learn(void)
{
    read_line("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
}

const char *tqi_machine_boot_id(void)
{
    pthread_once(&once, learn);
    return boot_id;
}

const char *tqi_machine_host(void)
{
    pthread_once(&once, learn);
    return host;
}

uint64_t tqi_machine_memory(void)
{
    struct sysinfo info;
    char line[64];
    uint64_t bytes = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0;
    if (read_line("/sys/fs/cgroup/memory.max", line, sizeof line)) {
        uint64_t limit = strtoull(line, NULL, 10); /* "max" reads as 0 */
        if (limit > 0 && (bytes == 0 || limit < bytes))
            bytes = limit;
    }
    return bytes;
}

uint64_t tqi_process_pid_ns(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

uint64_t tqi_process_start_time(int pid)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_line(path, line, sizeof line))
        return 0;
    /* The name in parentheses may hold anything; field 22 is the 20th after it. */
    char *at = strrchr(line, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}
