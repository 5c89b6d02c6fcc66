/* Preloaded into a box's programs: a connection to anything but this machine is refused, and noted in the file
   OUTBOUND_LOG. Looking a name up is one, too: it asks a name server. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_here(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return (ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24) == 127;
  if (address->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
  return 1;
}

static void note(const struct sockaddr *address) {
  char host[INET6_ADDRSTRLEN] = "?", line[256];
  const void *raw = address->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                                                  : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;
  inet_ntop(address->sa_family, raw, host, sizeof host);
  int length = snprintf(line, sizeof line, "pid %d to %s port %d\n", getpid(), host,
                        ntohs(((const struct sockaddr_in *)address)->sin_port));
  const char *path = getenv("OUTBOUND_LOG");
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0) return;
  if (write(file, line, (size_t)length) < 0) abort();
  close(file);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
  static int (*real)(int, const struct sockaddr *, socklen_t);
  if (!real) real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
  if (is_here(address)) return real(socket, address, length);
  note(address);
  errno = ENETUNREACH;
  return -1;
}
