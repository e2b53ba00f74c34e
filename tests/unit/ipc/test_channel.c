/* Do messages reach the process they are meant for, and only that one, across deaths of either
 * side? Two channels in one process, or a forked worker that says by its exit code how it went. */
#include "config/base/clock.h"
#include "ipc/channel.h"
#include "support_message.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum { PATIENCE_US = 5 * 1000 * 1000 };

static char dir[64], path[96], endpoint[112];
static struct arena *arena;

static void set_up(void)
{
    strcpy(dir, "/tmp/kvnode-channel-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/n.zmq", dir);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    arena = arena_new(0);
}

static void tear_down(void)
{
    arena_free(arena);
    unlink(path);
    rmdir(dir);
}

TestSuite(channel, .init = set_up, .fini = tear_down, .timeout = 20);

static struct channel *open_router(void)
{
    struct channel *c = NULL;
    struct err_info ei = {0};
    cr_assert_eq(channel_open_router(endpoint, &c, &ei), OK, "%s", ei.text);
    return c;
}

static struct channel *open_worker(uint32_t worker, int32_t pid)
{
    struct channel *c = NULL;
    struct err_info ei = {0};
    struct channel_peer self = {.worker = worker, .pid = pid};
    cr_assert_eq(channel_open_worker(endpoint, self, &c, &ei), OK, "%s", ei.text);
    return c;
}

/* As an event loop does it: after BUSY, nothing is tried before the descriptor says so. */
static enum err receive(struct channel *c, struct channel_peer *from, struct message *out)
{
    uint64_t deadline_us = clock_now_us() + PATIENCE_US;
    for (;;) {
        enum err rc = channel_receive(c, arena, from, out, NULL);
        struct pollfd p = {.fd = channel_fd(c), .events = POLLIN};
        if (rc != ERR_BUSY || clock_now_us() > deadline_us)
            return rc;
        poll(&p, 1, PATIENCE_US / 1000);
    }
}

/* Until code comes back or patience ends. */
static enum err send_until(struct channel *c, const struct channel_peer *to,
                           const struct message *m, enum err code)
{
    uint64_t deadline_us = clock_now_us() + PATIENCE_US;
    enum err rc;
    while ((rc = channel_send(c, to, m, NULL)) != code && clock_now_us() < deadline_us)
        poll(NULL, 0, 2);
    return rc;
}

static struct message cancel(uint64_t id)
{
    return (struct message){.kind = MESSAGE_CANCEL, .as.cancel = {.id = id}};
}

/* HELLO and WELCOME, or what stands for them here. */
static struct channel_peer meet(struct channel *router, struct channel *worker)
{
    struct message hello = cancel(1), welcome = cancel(2), got;
    struct channel_peer from = {0};
    cr_assert_eq(send_until(worker, NULL, &hello, OK), OK);
    cr_assert_eq(receive(router, &from, &got), OK);
    cr_assert_eq(got.as.cancel.id, 1);
    cr_assert_eq(channel_send(router, &from, &welcome, NULL), OK);
    cr_assert_eq(receive(worker, NULL, &got), OK);
    cr_assert_eq(got.as.cancel.id, 2);
    return from;
}

Test(channel, messages_of_each_kind_travel_both_ways)
{
    struct channel *router = open_router(), *worker = open_worker(3, 77);
    struct random_source r = random_source_new(5);
    struct channel_peer from = meet(router, worker);
    cr_assert(from.worker == 3 && from.pid == 77);
    for (enum message_kind kind = MESSAGE_HELLO; kind <= MESSAGE_STOP; kind++) {
        struct message m = random_message(&r, kind, arena), got;
        cr_assert_eq(channel_send(worker, NULL, &m, NULL), OK);
        cr_assert_eq(receive(router, &from, &got), OK);
        cr_assert_null(message_difference(&m, &got));
        cr_assert_eq(channel_send(router, &from, &m, NULL), OK);
        cr_assert_eq(receive(worker, NULL, &got), OK);
        cr_assert_null(message_difference(&m, &got));
    }
    channel_close(worker);
    channel_close(router);
}

Test(channel, the_longest_prompt_fits)
{
    struct channel *router = open_router(), *worker = open_worker(0, 1);
    struct channel_peer peer = meet(router, worker);
    struct random_source r = random_source_new(6);
    struct message m = random_message(&r, MESSAGE_SUBMIT, arena), got;
    m.as.submit.n_prompt = MESSAGE_MAX_TOKENS;
    m.as.submit.n_emitted = 0;
    m.as.submit.tokens = arena_alloc_array(arena, MESSAGE_MAX_TOKENS, sizeof(uint32_t));
    cr_assert_eq(channel_send(router, &peer, &m, NULL), OK);
    cr_assert_eq(receive(worker, NULL, &got), OK);
    cr_assert_null(message_difference(&m, &got));
    channel_close(worker);
    channel_close(router);
}

Test(channel, each_worker_gets_its_own)
{
    struct channel *router = open_router(), *worker[3];
    struct message m, got;
    for (uint32_t i = 0; i < 3; i++) {
        worker[i] = open_worker(i, 500);
        meet(router, worker[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        struct channel_peer to = {.worker = i, .pid = 500};
        m = cancel(100 + i);
        cr_assert_eq(channel_send(router, &to, &m, NULL), OK);
    }
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(receive(worker[i], NULL, &got), OK);
        cr_assert_eq(got.as.cancel.id, 100 + i);
        cr_assert_eq(channel_receive(worker[i], arena, NULL, &got, NULL), ERR_BUSY);
        channel_close(worker[i]);
    }
    channel_close(router);
}

Test(channel, a_successor_of_the_same_index_is_another_peer)
{
    struct channel *router = open_router(), *first = open_worker(2, 100), *second;
    struct channel_peer old = meet(router, first), new;
    struct message m = cancel(9), got;
    channel_close(first);
    second = open_worker(2, 101);
    new = meet(router, second);
    cr_assert(new.worker == 2 && new.pid == 101);
    cr_assert_eq(send_until(router, &old, &m, ERR_GONE), ERR_GONE);
    poll(NULL, 0, 20);
    cr_assert_eq(channel_receive(second, arena, NULL, &got, NULL), ERR_BUSY);
    channel_close(second);
    channel_close(router);
}

Test(channel, a_peer_that_was_never_there_is_gone)
{
    struct channel *router = open_router();
    struct channel_peer nobody = {.worker = 4, .pid = 4};
    struct message m = cancel(1);
    struct err_info ei = {0};
    cr_assert_eq(channel_send(router, &nobody, &m, &ei), ERR_GONE);
    cr_assert_not_null(strstr(ei.text, "worker 4"));
    channel_close(router);
}

Test(channel, a_worker_meets_the_next_router_and_brings_nothing_old)
{
    struct channel *router = open_router(), *worker = open_worker(1, 10);
    struct message stale = cancel(666), got;
    struct channel_peer from;
    meet(router, worker);
    channel_close(router);
    cr_assert_eq(access(path, F_OK), -1, "the socket file was left");
    cr_assert_eq(send_until(worker, NULL, &stale, ERR_BUSY), ERR_BUSY);
    poll(NULL, 0, 200); /* some reconnects fail meanwhile */
    cr_assert_eq(channel_send(worker, NULL, &stale, NULL), ERR_BUSY);
    router = open_router();
    from = meet(router, worker); /* asserts that its first message is the new hello */
    cr_assert(from.worker == 1 && from.pid == 10);
    cr_assert_eq(channel_receive(router, arena, &from, &got, NULL), ERR_BUSY);
    channel_close(worker);
    channel_close(router);
}

Test(channel, a_stale_socket_file_is_replaced)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(addr.sun_path, path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    close(fd); /* as a crash leaves it */
    cr_assert_eq(access(path, F_OK), 0);
    struct channel *router = open_router(), *worker = open_worker(0, 1);
    meet(router, worker);
    channel_close(worker);
    channel_close(router);
}

Test(channel, the_socket_of_a_living_router_is_not_taken)
{
    struct channel *router = open_router(), *second = NULL, *worker;
    struct err_info ei = {0};
    cr_assert_eq(channel_open_router(endpoint, &second, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, path), "%s", ei.text);
    cr_assert_null(second);
    worker = open_worker(0, 1);
    meet(router, worker);
    channel_close(worker);
    channel_close(router);
}

Test(channel, a_path_that_cannot_be_bound_is_an_error)
{
    struct channel *c = NULL;
    struct err_info ei = {0};
    char bad[160];
    snprintf(bad, sizeof bad, "ipc://%s/none/n.zmq", dir);
    cr_assert_eq(channel_open_router(bad, &c, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, bad), "%s", ei.text);
    channel_close(NULL);
}

Test(channel, a_full_queue_says_busy_and_loses_nothing)
{
    struct channel *router = open_router(), *worker = open_worker(0, 1);
    struct channel_peer from = meet(router, worker);
    struct message m = cancel(0), got;
    uint64_t n = 0;
    while (n < 1000 * 1000 && channel_send(worker, NULL, &m, NULL) == OK)
        m = cancel(++n);
    cr_assert(n > 1000 && n < 1000 * 1000, "%llu were taken", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_eq(receive(router, &from, &got), OK);
        cr_assert_eq(got.as.cancel.id, i);
    }
    cr_assert_eq(send_until(worker, NULL, &m, OK), OK);
    channel_close(worker);
    channel_close(router);
}

/* Strangers by hand: no routing id of ours, bytes that are no message, a frame too many. */
Test(channel, nonsense_is_dropped_and_the_next_message_still_comes)
{
    struct channel *router = open_router(), *worker = open_worker(5, 55);
    struct channel_peer from = {0};
    struct message got;
    void *context = zmq_ctx_new(), *stranger = zmq_socket(context, ZMQ_DEALER),
         *imposter = zmq_socket(context, ZMQ_DEALER);
    meet(router, worker);
    cr_assert_eq(zmq_setsockopt(imposter, ZMQ_ROUTING_ID, "w\1\0\0\0\2\0\0\0", 9), 0);
    cr_assert_eq(zmq_connect(stranger, endpoint), 0);
    cr_assert_eq(zmq_connect(imposter, endpoint), 0);
    zmq_send(stranger, "\x81\xa1t\x09", 4, 0);
    cr_assert_eq(receive(router, &from, &got), ERR_PARSE);
    zmq_send(imposter, "hello", 5, 0);
    cr_assert_eq(receive(router, &from, &got), ERR_PARSE);
    cr_assert(from.worker == 1 && from.pid == 2, "who sent it is known");
    zmq_send(imposter, "\x81\xa1t\x09", 4, ZMQ_SNDMORE);
    zmq_send(imposter, "a", 1, ZMQ_SNDMORE);
    zmq_send(imposter, "b", 1, 0);
    cr_assert_eq(receive(router, &from, &got), ERR_PARSE);
    zmq_send(imposter, "\x81\xa1t\x09", 4, 0);
    cr_assert_eq(receive(router, &from, &got), OK);
    cr_assert_eq(got.kind, MESSAGE_STOP);
    meet(router, worker);
    zmq_close(stranger);
    zmq_close(imposter);
    zmq_ctx_term(context);
    channel_close(worker);
    channel_close(router);
}

/* In the child: says hello, waits for the answer, and then hangs or leaves. Asserts nothing. */
static void worker_process(bool is_to_hang)
{
    struct channel *c = NULL;
    struct channel_peer self = {.worker = 7, .pid = getpid()};
    struct message hello = cancel(1), got;
    if (channel_open_worker(endpoint, self, &c, NULL) != OK)
        _exit(1);
    if (send_until(c, NULL, &hello, OK) != OK || receive(c, NULL, &got) != OK)
        _exit(2);
    while (is_to_hang)
        pause();
    channel_close(c);
    _exit(got.as.cancel.id == 2 ? 0 : 3);
}

static pid_t start_worker(bool is_to_hang)
{
    pid_t pid = fork();
    if (pid == 0)
        worker_process(is_to_hang);
    cr_assert_gt(pid, 0);
    return pid;
}

static struct channel_peer welcome(struct channel *router)
{
    struct channel_peer from = {0};
    struct message m = cancel(2), got;
    cr_assert_eq(receive(router, &from, &got), OK);
    cr_assert_eq(channel_send(router, &from, &m, NULL), OK);
    return from;
}

Test(channel, another_process_says_hello_and_is_answered)
{
    int status;
    pid_t pid = start_worker(false); /* before the router listens, as at every start */
    struct channel *router = open_router();
    cr_assert_eq(welcome(router).pid, pid);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
    channel_close(router);
}

Test(channel, a_killed_process_is_gone_and_closing_does_not_wait_for_it)
{
    pid_t pid = start_worker(true);
    struct channel *router = open_router();
    struct channel_peer peer = welcome(router);
    struct message m = cancel(3);
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cr_assert_eq(send_until(router, &peer, &m, ERR_GONE), ERR_GONE);
    uint64_t before_us = clock_now_us();
    channel_close(router);
    cr_assert_lt(clock_now_us() - before_us, 2 * 1000 * 1000);
}
