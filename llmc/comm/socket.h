/* TCP as ranks use it: connections that notice a peer that is gone, send small messages at once, and never raise
 * SIGPIPE. Deadlines are times of clock_seconds(); INFINITY: none. */
#pragma once
#include <stddef.h>
#include "llmc/base/error.h"

/* A listening socket: on this host alone where `address` is 127.0.0.1, ::1 or localhost, else on all of the host's. *port 0: a
 * free one is taken and said. -1 on error: the port is in use, say. */
int socket_listen(const char *address, int *port, Error *err);
/* The next connection; -1 where there is none. */
int socket_accept(int listening);
/* One try at each of the address' numbers (IPv6, IPv4), some seconds each. -1 with err. */
int socket_connect(const char *address, int port, double deadline, Error *err);
/* False where the peer is gone or the deadline passed; errno says why, 0: the peer closed. */
bool socket_send(int fd, const void *data, size_t bytes, double deadline);
bool socket_receive(int fd, void *data, size_t bytes, double deadline);
/* What the connection takes, or has, of the `bytes` without waiting, behind the *sent or *got before; false: no more will
 * go, or come. */
bool socket_send_some(int fd, const void *data, size_t bytes, size_t *sent);
bool socket_receive_some(int fd, void *data, size_t bytes, size_t *got);
/* The peer has closed, whatever is left to read. */
bool socket_is_closed(int fd);
