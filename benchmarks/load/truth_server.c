// Ground truth for load clients: a streaming server in the manner of OpenAI's API that knows when it sent each token.
//
//     truth_server TTFT_MS ITL_MS LOG
//
// It listens on a free port of 127.0.0.1 and prints the port. A POST is answered by `max_tokens` token events, the first
// TTFT_MS after the request arrived, the rest ITL_MS apart. When stdin closes it writes LOG and ends: a line for each
// request, `ID ARRIVED_NS SENT_NS SENT_NS ...`, ID being the header X-Request-Id, times being CLOCK_MONOTONIC, which is
// also Python's perf_counter. Arrival is when the kernel had the request's last bytes, so that a burst of requests is
// not charged with the time that this server takes to read them; a token is sent when send() is called.
//
// One thread, epoll, absolute timers. It knows only the HTTP that well-behaved clients send: Content-Length, no pipelining.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 65536, ID_BYTES = 96, READ_BYTES = 65536, EVENTS = 512, TICKS_BETWEEN_POLLS = 32 };

typedef struct {
    char id[ID_BYTES];
    int64_t arrived_ns;
    int wanted, sent, chat, usage;
    int64_t *sent_ns;
} Request;

typedef struct {
    int fd;
    Request *request;  // being answered
    int64_t due_ns;    // of its next token
    char *in, *out;    // unparsed bytes, unsent bytes
    size_t in_bytes, in_room, out_bytes, out_room;
} Connection;

static int64_t ttft_ns, itl_ns;
static int epoll;
static Connection *connections[MAX_FDS];
static Request **requests;
static size_t request_count, request_room;
static Connection **heap;  // those with a token due, the earliest first
static size_t heap_count, heap_room;

static void *grown(void *block, size_t bytes) {
    void *result = realloc(block, bytes);
    if (result == NULL) abort();
    return result;
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// --- which token is due next ---------------------------------------------------------------------------------------

static void heap_push(Connection *connection) {
    if (heap_count == heap_room) heap = grown(heap, (heap_room = heap_room * 2 + 64) * sizeof *heap);
    size_t place = heap_count++;
    for (size_t up; place > 0 && heap[up = (place - 1) / 2]->due_ns > connection->due_ns; place = up) heap[place] = heap[up];
    heap[place] = connection;
}

static void heap_sink(size_t place, Connection *connection) {
    for (size_t down; (down = 2 * place + 1) < heap_count; place = down) {
        if (down + 1 < heap_count && heap[down + 1]->due_ns < heap[down]->due_ns) down++;
        if (heap[down]->due_ns >= connection->due_ns) break;
        heap[place] = heap[down];
    }
    heap[place] = connection;
}

static Connection *heap_pop(void) {
    Connection *first = heap[0];
    heap_count--;
    if (heap_count > 0) heap_sink(0, heap[heap_count]);
    return first;
}

static void heap_remove(Connection *connection) {  // rare: a client left in the middle of an answer
    size_t kept = 0, count = heap_count;
    for (size_t i = 0; i < count; i++)
        if (heap[i] != connection) heap[kept++] = heap[i];
    heap_count = 0;
    for (size_t i = 0; i < kept; i++) heap_push(heap[i]);
}

// --- bytes out -----------------------------------------------------------------------------------------------------

static void watch(int fd, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(epoll, operation, fd, &event);
}

static void drop(Connection *connection) {
    if (connection->request != NULL) heap_remove(connection);
    connections[connection->fd] = NULL;
    close(connection->fd);
    free(connection->in);
    free(connection->out);
    free(connection);
}

static void flush(Connection *connection) {
    ssize_t sent = send(connection->fd, connection->out, connection->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
        connection->out_bytes -= sent;
        memmove(connection->out, connection->out + sent, connection->out_bytes);
    }
    watch(connection->fd, connection->out_bytes > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

static void write_out(Connection *connection, const char *data, size_t bytes) {
    if (connection->out_bytes == 0) {
        ssize_t sent = send(connection->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == (ssize_t)bytes) return;
        if (sent > 0) data += sent, bytes -= sent;
    }
    if (connection->out_bytes + bytes > connection->out_room)
        connection->out = grown(connection->out, connection->out_room = 2 * (connection->out_bytes + bytes));
    memcpy(connection->out + connection->out_bytes, data, bytes);
    connection->out_bytes += bytes;
    watch(connection->fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

// --- an answer -----------------------------------------------------------------------------------------------------

static const char HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

static char *put_chunk(char *out, const char *text, int bytes) {
    out += sprintf(out, "%x\r\n", bytes);
    memcpy(out, text, bytes);
    memcpy(out + bytes, "\r\n", 2);
    return out + bytes + 2;
}

static char *put_token(char *out, const Request *request, int last) {
    char text[512];
    const char *finish = last ? "\"length\"" : "null", *usage = request->usage ? ",\"usage\":null" : "";
    const char *form = request->chat
        ? "data: {\"id\":\"chatcmpl-%032d\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"truth\","
          "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" t%03d\"},\"logprobs\":null,\"finish_reason\":%s}]%s}\n\n"
        : "data: {\"id\":\"cmpl-%032d\",\"object\":\"text_completion\",\"created\":1790000000,\"model\":\"truth\","
          "\"choices\":[{\"index\":0,\"text\":\" t%03d\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null}]%s}\n\n";
    return put_chunk(out, text, sprintf(text, form, 0, request->sent % 1000, finish, usage));
}

static char *put_end(char *out, const Request *request) {
    char text[512];
    if (request->usage)
        out = put_chunk(out, text, sprintf(text, "data: {\"id\":\"cmpl\",\"object\":\"text_completion\",\"model\":\"truth\","
                                           "\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%d,"
                                           "\"total_tokens\":%d}}\n\n", request->wanted, request->wanted + 1));
    out = put_chunk(out, "data: [DONE]\n\n", 14);
    memcpy(out, "0\r\n\r\n", 5);
    return out + 5;
}

static void send_token(Connection *connection) {
    char data[2048], *end = data;
    Request *request = connection->request;
    int last = request->sent == request->wanted - 1;
    if (request->sent == 0) end = stpcpy(end, HEAD);
    end = put_token(end, request, last);
    if (last) end = put_end(end, request);
    if (last) connection->request = NULL;
    connection->due_ns += itl_ns;
    if (!last) heap_push(connection);
    request->sent_ns[request->sent++] = clock_ns(CLOCK_MONOTONIC);
    write_out(connection, data, end - data);
}

// --- a request -----------------------------------------------------------------------------------------------------

static const char *after(const char *text, const char *name) {
    const char *found = strcasestr(text, name);
    if (found == NULL) return NULL;
    found += strlen(name);
    return found + strspn(found, ": \"");
}

static int number_after(const char *text, const char *name, int otherwise) {
    const char *found = after(text, name);
    return found != NULL && atoi(found) > 0 ? atoi(found) : otherwise;
}

static void answer_at_once(Connection *connection) {  // a GET: health checks, the list of models
    static const char body[] = "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\",\"root\":\"truth\","
                               "\"owned_by\":\"autotune\",\"created\":1,\"max_model_len\":32768}]}";
    char data[512];
    write_out(connection, data, sprintf(data, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                                        "content-length: %zu\r\n\r\n%s", sizeof body - 1, body));
}

static void accept_request(Connection *connection, const char *head, const char *body, int64_t arrived_ns) {
    Request *request = calloc(1, sizeof *request);
    const char *id = after(head, "\nx-request-id");
    if (id != NULL) snprintf(request->id, sizeof request->id, "%.*s", (int)strcspn(id, "\r\n "), id);
    request->arrived_ns = arrived_ns;
    request->wanted = number_after(body, "\"max_completion_tokens\"", number_after(body, "\"max_tokens\"", 16));
    request->usage = strstr(body, "\"include_usage\"") != NULL;
    request->chat = strstr(head, "/chat/") != NULL;
    request->sent_ns = calloc(request->wanted, sizeof *request->sent_ns);
    if (request_count == request_room) requests = grown(requests, (request_room = request_room * 2 + 64) * sizeof *requests);
    requests[request_count++] = request;
    connection->request = request;
    connection->due_ns = arrived_ns + ttft_ns;
    heap_push(connection);
}

static void take_request(Connection *connection, int64_t arrived_ns) {
    connection->in[connection->in_bytes] = 0;
    char *body = strstr(connection->in, "\r\n\r\n");
    if (body == NULL || connection->request != NULL) return;
    *body = 0;
    body += 4;
    size_t head_bytes = body - connection->in, body_bytes = number_after(connection->in, "\ncontent-length", 0);
    if (connection->in_bytes < head_bytes + body_bytes) {
        body[-4] = '\r';
        return;
    }
    if (connection->in[0] == 'P')
        accept_request(connection, connection->in, body, arrived_ns);
    else
        answer_at_once(connection);
    connection->in_bytes -= head_bytes + body_bytes;
    memmove(connection->in, body + body_bytes, connection->in_bytes);
}

// --- bytes in ------------------------------------------------------------------------------------------------------

// When the kernel had what was just read; `offset_ns` is wall time minus monotonic time.
static int64_t kernel_ns(struct msghdr *message, int64_t offset_ns) {
    for (struct cmsghdr *item = CMSG_FIRSTHDR(message); item != NULL; item = CMSG_NXTHDR(message, item))
        if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(item), sizeof stamp);
            return stamp.tv_sec * 1000000000LL + stamp.tv_nsec - offset_ns;
        }
    return clock_ns(CLOCK_MONOTONIC);
}

static void read_in(Connection *connection) {
    if (connection->in_room < connection->in_bytes + READ_BYTES + 1)
        connection->in = grown(connection->in, connection->in_room = 2 * connection->in_bytes + READ_BYTES + 1);
    char control[128];
    struct iovec into = {connection->in + connection->in_bytes, READ_BYTES};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t bytes = recvmsg(connection->fd, &message, MSG_DONTWAIT);
    if (bytes > 0) {
        connection->in_bytes += bytes;
        take_request(connection, kernel_ns(&message, clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC)));
    } else if (bytes == 0 || (errno != EAGAIN && errno != EINTR))
        drop(connection);
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MAX_FDS) abort();
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
        connections[fd] = calloc(1, sizeof **connections);
        connections[fd]->fd = fd;
        watch(fd, EPOLLIN, EPOLL_CTL_ADD);
    }
}

static void serve(int listener, int timer) {
    struct epoll_event events[EVENTS];
    for (;;) {
        int64_t next_ns = heap_count > 0 ? heap[0]->due_ns : 0;
        struct itimerspec alarm = {.it_value = {next_ns / 1000000000, next_ns % 1000000000}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &alarm, NULL);
        int count = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO) return;
            if (fd == listener) accept_all(listener);
            if (connections[fd] != NULL && (events[i].events & EPOLLOUT)) flush(connections[fd]);
            if (connections[fd] != NULL && (events[i].events & ~EPOLLOUT)) read_in(connections[fd]);
        }
        for (int sent = 0; heap_count > 0 && heap[0]->due_ns <= clock_ns(CLOCK_MONOTONIC); sent++) {
            if (sent == TICKS_BETWEEN_POLLS) break;  // requests have their turn in the middle of a burst
            send_token(heap_pop());
        }
    }
}

static int write_log(const char *path) {
    FILE *log = fopen(path, "w");
    if (log == NULL) return perror(path), 1;
    for (size_t i = 0; i < request_count; i++) {
        fprintf(log, "%s %lld", requests[i]->id[0] ? requests[i]->id : "-", (long long)requests[i]->arrived_ns);
        for (int k = 0; k < requests[i]->sent; k++) fprintf(log, " %lld", (long long)requests[i]->sent_ns[k]);
        fputc('\n', log);
    }
    return fclose(log) != 0;
}

int main(int count, char **words) {
    if (count != 4) return fprintf(stderr, "usage: truth_server TTFT_MS ITL_MS LOG\n"), 2;
    ttft_ns = atof(words[1]) * 1e6;
    itl_ns = atof(words[2]) * 1e6;
    prctl(PR_SET_TIMERSLACK, 1);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < MAX_FDS ? files.rlim_max : MAX_FDS;
    setrlimit(RLIMIT_NOFILE, &files);

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    if (bind(listener, (void *)&address, bytes) || listen(listener, 4096)) return perror("listen"), 1;
    getsockname(listener, (void *)&address, &bytes);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    epoll = epoll_create1(0);
    watch(listener, EPOLLIN, EPOLL_CTL_ADD);
    watch(timer, EPOLLIN | EPOLLET, EPOLL_CTL_ADD);
    watch(STDIN_FILENO, EPOLLIN, EPOLL_CTL_ADD);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    serve(listener, timer);
    return write_log(words[3]);
}
