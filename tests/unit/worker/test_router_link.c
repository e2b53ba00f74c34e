/* Does a worker find, serve and lose its router as the protocol page says? The router is a real
 * ROUTER socket in this process; a child that only sleeps is its process to watch. */
#include "worker/router_link.h"

#include "ipc/channel.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_US = 2000 * 1000, WAIT_STEPS = 2000 };

static char directory[64], endpoint[96];
static struct channel *router;
static struct router_link *link_;
static struct arena *arena;
static const struct channel_peer WORKER = {.worker = 3, .pid = 4242};

static void open_all(void)
{
    struct err_info ei = {0};
    snprintf(directory, sizeof directory, "/tmp/kvnode-test-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    snprintf(endpoint, sizeof endpoint, "ipc://%s/link.zmq", directory);
    arena = arena_new(0);
    cr_assert_eq(channel_open_router(endpoint, &router, &ei), OK, "%s", ei.text);
    struct router_link_config cfg = {.endpoint = endpoint,
                                     .grace_us = GRACE_US,
                                     .hello = {.protocol = PROTOCOL_VERSION,
                                               .worker = WORKER.worker,
                                               .pid = WORKER.pid,
                                               .isa = "plain"}};
    cr_assert_eq(router_link_open(&cfg, 0, &link_, &ei), OK, "%s", ei.text);
}

static void close_all(void)
{
    router_link_close(link_);
    channel_close(router);
    arena_free(arena);
    rmdir(directory);
}

TestSuite(router_link, .timeout = 20, .init = open_all, .fini = close_all);

static pid_t start_sleeper(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* The kind of the router's next message, or 0 when none comes for some time. */
static int router_hears(int wait_ms)
{
    for (int i = 0; i <= wait_ms; i++) {
        struct message m;
        struct channel_peer from;
        if (channel_receive(router, arena, &from, &m, NULL) == OK) {
            cr_assert_eq(from.worker, WORKER.worker);
            cr_assert_eq(from.pid, WORKER.pid);
            return (int)m.kind;
        }
        usleep(1000);
    }
    return 0;
}

/* Ticks until the connection stands and HELLO is there; returns the time. */
static uint64_t wait_for_hello(uint64_t now_us)
{
    for (int i = 0; i < WAIT_STEPS; i++) {
        now_us += 1000;
        cr_assert_eq(router_link_tick(link_, now_us), ROUTER_LINK_GREETING);
        if (router_hears(1) == MESSAGE_HELLO)
            return now_us;
    }
    cr_assert_fail("no HELLO");
    return 0;
}

static void say(const struct message *m)
{
    struct err_info ei = {0};
    cr_assert_eq(channel_send(router, &WORKER, m, &ei), OK, "%s", ei.text);
}

static void welcome(pid_t pid)
{
    say(&(struct message){.kind = MESSAGE_WELCOME,
                          .as.welcome = {.protocol = PROTOCOL_VERSION,
                                         .router_pid = pid,
                                         .router_start = process_start_time(pid)}});
}

/* The next message for the engine, or 0 when none comes for some time. */
static int worker_hears(uint64_t now_us, int wait_ms)
{
    for (int i = 0; i <= wait_ms; i++) {
        struct message m;
        if (router_link_receive(link_, now_us, &m, NULL) == OK)
            return (int)m.kind;
        usleep(1000);
    }
    return 0;
}

Test(router_link, says_hello_again_until_welcomed_and_then_no_more)
{
    uint64_t now_us = wait_for_hello(0);
    cr_assert_eq(router_link_tick(link_, now_us + ROUTER_LINK_GREET_US - 1), ROUTER_LINK_GREETING);
    cr_assert_eq(router_hears(20), 0, "too early");
    cr_assert_eq(router_link_tick(link_, now_us + ROUTER_LINK_GREET_US), ROUTER_LINK_GREETING);
    cr_assert_eq(router_hears(1000), MESSAGE_HELLO);
    pid_t pid = start_sleeper();
    welcome(pid);
    cr_assert_eq(worker_hears(now_us, 50), 0, "WELCOME is not for the engine");
    cr_assert_eq(router_link_tick(link_, now_us + 10 * GRACE_US), ROUTER_LINK_SERVING);
    cr_assert_eq(router_hears(20), 0);
    end(pid);
}

Test(router_link, hands_out_only_what_the_router_it_serves_may_say)
{
    const struct message cancel = {.kind = MESSAGE_CANCEL, .as.cancel.id = 5};
    const struct message stats = {.kind = MESSAGE_STATS};
    pid_t pid = start_sleeper();
    uint64_t now_us = wait_for_hello(0);
    say(&cancel); /* before WELCOME: of nobody */
    welcome(pid);
    say(&stats); /* a worker's word */
    say(&(struct message){.kind = MESSAGE_DRAIN});
    cr_assert_eq(worker_hears(now_us, 1000), MESSAGE_DRAIN);
    say(&cancel);
    cr_assert_eq(worker_hears(now_us, 1000), MESSAGE_CANCEL);
    end(pid);
}

Test(router_link, a_dead_router_is_noticed_and_the_grace_runs_from_then)
{
    pid_t pid = start_sleeper();
    uint64_t now_us = wait_for_hello(0);
    welcome(pid);
    worker_hears(now_us, 50);
    uint64_t generation = router_link_generation(link_);
    now_us += 100 * GRACE_US;
    cr_assert_eq(router_link_tick(link_, now_us), ROUTER_LINK_SERVING);
    end(pid);
    cr_assert_eq(router_link_tick(link_, now_us), ROUTER_LINK_GREETING);
    cr_assert_neq(router_link_generation(link_), generation);
    cr_assert_eq(router_link_tick(link_, now_us + GRACE_US - 1), ROUTER_LINK_GREETING);
    cr_assert_eq(router_link_tick(link_, now_us + GRACE_US), ROUTER_LINK_EXPIRED);
}

Test(router_link, another_router_of_the_name_is_served_as_a_new_one)
{
    pid_t first = start_sleeper(), second = start_sleeper();
    uint64_t now_us = wait_for_hello(0);
    welcome(first);
    worker_hears(now_us, 50);
    end(first);
    now_us = wait_for_hello(now_us);
    uint64_t generation = router_link_generation(link_);
    welcome(second);
    worker_hears(now_us, 50);
    cr_assert_neq(router_link_generation(link_), generation);
    cr_assert_eq(router_link_tick(link_, now_us), ROUTER_LINK_SERVING);
    end(second);
}

Test(router_link, a_welcome_of_a_dead_process_is_none)
{
    pid_t pid = start_sleeper();
    uint64_t now_us = wait_for_hello(0);
    struct message m = {.kind = MESSAGE_WELCOME,
                        .as.welcome = {.protocol = PROTOCOL_VERSION,
                                       .router_pid = pid,
                                       .router_start = process_start_time(pid) + 1}};
    say(&m); /* the pid lives, but is another process */
    worker_hears(now_us, 50);
    cr_assert_eq(router_link_tick(link_, now_us), ROUTER_LINK_GREETING);
    end(pid);
}
