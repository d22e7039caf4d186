#include "socket.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const double connect_seconds = 3; /* for one address: a host that is down does not refuse */

/* Waits until the socket has one of `events`; false with ETIMEDOUT. */
static bool await(int fd, short events, double deadline) {
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        const double left = deadline - clock_seconds();
        const int n = poll(&p, 1, left <= 0 ? 0 : left < 1000 ? (int)ceil(left * 1e3) : 1000000);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
        if (n == 0 && left <= 0) {
            errno = ETIMEDOUT;
            return false;
        }
    }
}

static void set_option(int fd, int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value); /* what a system has not, it does without */
}

/* A host that vanishes is noticed after 20 s, where nothing else notices it. */
static void prepare(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
}

/* ---- listening ---- */

/* 127.0.0.1 and ::1. */
static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) == INADDR_LOOPBACK;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static struct addrinfo *look_up(const char *address, int port, int flags, int *why) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    *why = getaddrinfo(address, service, &hints, &found);
    return *why ? NULL : found;
}

static int try_listen(const struct sockaddr *address, socklen_t size) {
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd, address, size) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* All addresses of this host, of IPv6 and IPv4; of IPv4 alone where the system has no other. */
static int listen_everywhere(int port) {
    const struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int fd = try_listen((const struct sockaddr *)&six, sizeof six);
    return fd >= 0 || errno == EADDRINUSE || errno == EACCES
               ? fd
               : try_listen((const struct sockaddr *)&four, sizeof four);
}

static int port_of(int fd) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size)) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

int socket_listen(const char *address, int *port, Error *err) {
    /* Of a host's name only this host may think that it is 127.0.0.1: the others know another address of it. */
    const int flags = strcmp(address, "localhost") == 0 ? 0 : AI_NUMERICHOST;
    int why, fd = -1;
    struct addrinfo *found = look_up(address, *port, flags, &why), *at = found;
    while (at && !is_loopback(at->ai_addr)) at = at->ai_next;
    fd = at ? try_listen(at->ai_addr, at->ai_addrlen) : listen_everywhere(*port);
    why = errno;
    if (found) freeaddrinfo(found);
    if (fd < 0) {
        fail(err, EXIT_RUN, "port %d of this host, where other ranks are waited for: %s%s", *port,
             strerror(why), why == EADDRINUSE ? "; hint: another MASTER_PORT on every rank" : "");
        return -1;
    }
    *port = port_of(fd);
    return fd;
}

int socket_accept(int listening) {
    const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) prepare(fd);
    return fd;
}

/* ---- connecting ---- */

static int try_connect(const struct addrinfo *at, double deadline) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int why = 0;
    socklen_t size = sizeof why;
    if (fd < 0) return -1;
    if (connect(fd, at->ai_addr, at->ai_addrlen)) {
        why = errno;
        if (why == EINPROGRESS && !await(fd, POLLOUT, deadline))
            why = errno;
        else if (why == EINPROGRESS)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size);
    }
    if (why == 0) {
        prepare(fd);
        return fd;
    }
    close(fd);
    errno = why;
    return -1;
}

int socket_connect(const char *address, int port, double deadline, Error *err) {
    int why, fd = -1;
    struct addrinfo *found = look_up(address, port, 0, &why);
    const char *text = found ? "no address" : gai_strerror(why);
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        fd = try_connect(at, fmin(deadline, clock_seconds() + connect_seconds));
        if (fd < 0) text = strerror(errno);
    }
    if (found) freeaddrinfo(found);
    if (fd < 0) fail(err, EXIT_RUN, "%s", text);
    return fd;
}

/* ---- data ---- */

bool socket_send_some(int fd, const void *data, size_t bytes, size_t *sent) {
    while (*sent < bytes) {
        const ssize_t n = send(fd, (const char *)data + *sent, bytes - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        *sent += (size_t)n;
    }
    return true;
}

bool socket_send(int fd, const void *data, size_t bytes, double deadline) {
    size_t sent = 0;
    while (socket_send_some(fd, data, bytes, &sent)) {
        if (sent == bytes) return true;
        if (!await(fd, POLLOUT, deadline)) return false;
    }
    return false;
}

bool socket_receive_some(int fd, void *data, size_t bytes, size_t *got) {
    while (*got < bytes) {
        const ssize_t n = recv(fd, (char *)data + *got, bytes - *got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        errno = 0;
        if (n == 0) return false;
        *got += (size_t)n;
    }
    return true;
}

bool socket_receive(int fd, void *data, size_t bytes, double deadline) {
    size_t got = 0;
    while (socket_receive_some(fd, data, bytes, &got)) {
        if (got == bytes) return true;
        if (!await(fd, POLLIN, deadline)) return false;
    }
    return false;
}

bool socket_is_closed(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}
