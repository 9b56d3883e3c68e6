/* SPDX-License-Identifier: Apache-2.0 */
#include "api/folder.h"

#include "unit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct folder_test {
    char base[64];
    tqi_folder_t folder;
    tqi_err_t err;
} folder_test_t;

static folder_test_t t;

static int setup(void **state)
{
    (void)state;
    memset(&t, 0, sizeof t);
    strcpy(t.base, "/tmp/tqi-folders-XXXXXX");
    return mkdtemp(t.base) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    tqi_folder_remove(&t.folder);
    snprintf(command, sizeof command, "rm -rf %s", t.base);
    return system(command);
}

static const char *inside(const char *name)
{
    static char path[TQI_ADDRESS_MAX + 64];

    snprintf(path, sizeof path, "%s/%s", t.folder.path, name);
    return path;
}

static bool is_there(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static void touch(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static void make(void)
{
    assert_int_equal(tqi_folder_make(t.base, &t.folder, &t.err), TQ_OK);
    assert_true(t.folder.lock_fd >= 0);
    touch(inside("controller"));
    touch(inside("unit-0"));
    touch(inside("unit-0.data"));
}

/* What the end of the process does. */
static void die(void)
{
    close(t.folder.lock_fd);
    t.folder.lock_fd = -1;
}

/* A folder as it was made before there were locks. */
static void make_old(pid_t pid, long age_s)
{
    struct timespec times[2];

    snprintf(t.folder.path, sizeof t.folder.path, "%s/tq-%d-abcdef", t.base, (int)pid);
    t.folder.lock_fd = -1;
    assert_int_equal(mkdir(t.folder.path, 0700), 0);
    touch(inside("unit-0"));
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= age_s;
    times[1] = times[0];
    assert_int_equal(utimensat(AT_FDCWD, t.folder.path, times, 0), 0);
}

static pid_t dead_pid(void)
{
    pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void the_folder_of_a_store_that_lives_stays(void **state)
{
    struct stat st;

    (void)state;
    make();
    assert_int_equal(stat(t.folder.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    assert_true(is_there(inside("controller")));
    tqi_folder_remove(&t.folder);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
}

static void the_folder_of_a_dead_store_is_removed_whoever_has_its_pid_now(void **state)
{
    (void)state;
    make(); /* this process lives */
    die();
    assert_int_equal(tqi_folder_sweep(t.base), 1);
    assert_false(is_there(t.folder.path));
}

static void the_folder_of_another_process_goes_once_that_has_died(void **state)
{
    int ready[2], hold[2];
    char byte;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(hold), 0);
    pid_t pid = fork();
    if (pid == 0) {
        tqi_folder_t folder;

        close(hold[1]);
        if (tqi_folder_make(t.base, &folder, NULL) != TQ_OK || write(ready[1], "x", 1) != 1)
            _exit(1);
        (void)!read(hold[0], &byte, 1); /* until the test lets go */
        _exit(0);
    }
    close(hold[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    close(hold[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(tqi_folder_sweep(t.base), 1);
    close(ready[0]);
    close(ready[1]);
}

static void one_without_a_lock_is_dead_when_old_and_without_its_process(void **state)
{
    (void)state;
    make_old(dead_pid(), 10);
    assert_int_equal(tqi_folder_sweep(t.base), 0); /* may be in the making, in another namespace */
    tqi_folder_remove(&t.folder);
    make_old(getpid(), 3600);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    tqi_folder_remove(&t.folder);
    make_old(dead_pid(), 3600);
    assert_int_equal(tqi_folder_sweep(t.base), 1);
    assert_false(is_there(t.folder.path));
}

static void one_whose_socket_answers_stays(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    make_old(dead_pid(), 3600);
    assert_true(strlen(inside("controller")) < sizeof at.sun_path);
    memcpy(at.sun_path, inside("controller"), strlen(inside("controller")));
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(utimensat(AT_FDCWD, t.folder.path, times, 0), 0);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    close(fd);
    assert_int_equal(tqi_folder_sweep(t.base), 1);
}

static void what_is_not_a_store_s_stays(void **state)
{
    char path[256], target[128];

    (void)state;
    /* Somebody's file in the folder of a dead store: it stays, and the folder with it. */
    make();
    touch(inside("notes"));
    die();
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    assert_true(is_there(inside("notes")));
    assert_int_equal(unlink(inside("notes")), 0);
    tqi_folder_remove(&t.folder);

    /* A link is not followed; what others may enter is nobody's store. */
    snprintf(target, sizeof target, "%s/elsewhere", t.base);
    assert_int_equal(mkdir(target, 0700), 0);
    snprintf(path, sizeof path, "%s/controller", target);
    touch(path);
    snprintf(path, sizeof path, "%s/lock", target);
    touch(path);
    snprintf(path, sizeof path, "%s/tq-1-abcdef", t.base);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(target, path), 0);
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(tqi_folder_sweep(t.base), 0);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(tqi_folder_sweep(t.base), 1);

    /* Other names. */
    static const char *const names[] = {"tq-x-abcdef", "tq-12-abcdefg", "tq-0-abcdef",
                                        "tq--1-abcde", "tqp-12-abcdef"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", t.base, names[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_int_equal(tqi_folder_sweep(t.base), 0);
}

static void where_none_can_be_made_the_variable_is_named(void **state)
{
    (void)state;
    assert_int_equal(tqi_folder_make("/no/such/folder", &t.folder, &t.err), TQ_E_SYSTEM);
    assert_non_null(strstr(t.err.text, "XDG_RUNTIME_DIR"));
    assert_string_equal(t.folder.path, "");
    assert_int_equal(tqi_folder_sweep("/no/such/folder"), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(the_folder_of_a_store_that_lives_stays),
        T(the_folder_of_a_dead_store_is_removed_whoever_has_its_pid_now),
        T(the_folder_of_another_process_goes_once_that_has_died),
        T(one_without_a_lock_is_dead_when_old_and_without_its_process),
        T(one_whose_socket_answers_stays),
        T(what_is_not_a_store_s_stays),
        T(where_none_can_be_made_the_variable_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
