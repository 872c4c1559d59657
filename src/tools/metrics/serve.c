/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server of `hocket metrics`: one thread, one request a connection, a few connections at a time. A client that
 * is slow, silent or sends nonsense costs one place for some seconds, or until another one needs it. */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../base/addr.h"
#include "../../base/param.h"
#include "../../base/wait.h"
#include "metrics.h"

enum { CLIENTS = 16, REQUEST = 4096 /* bytes of a request's head */, BACKLOG = 64 };
static const uint64_t serve_patience_ns = 5000000000u; /* for a request, and between two bytes of an answer */
static const uint64_t serve_fresh_ns = 1000000000u;    /* an answer is used again for so long */
static const uint64_t serve_day_ns = 86400000000000u;  /* a nap that the next connection ends */
static const uint64_t serve_pause_ns = 100000000u;     /* after a failed accept */

typedef struct serve_client {
  int fd; /* -1: unused */
  uint64_t since_ns;
  char request[REQUEST];
  size_t have;
  char *answer; /* NULL: the request is not complete */
  size_t n, sent;
  bool over; /* the answer is sent: closed once the client has read it */
} serve_client;

typedef struct serve_server {
  int fd;
  serve_client clients[CLIENTS];
  char *text; /* the newest metrics */
  size_t bytes;
  uint64_t made_ns; /* 0: never */
} serve_server;

static void serve_drop(serve_client *c) {
  close(c->fd);
  free(c->answer);
  c->fd = -1;
  c->answer = NULL;
}

/* ---- answers ---- */

/* False: there are no metrics; the thread's error says why. */
static bool serve_renew(serve_server *s) {
  char *text = NULL;
  size_t bytes = 0;
  if (s->made_ns && hk_ago_ns(hk_now_ns(), s->made_ns) < serve_fresh_ns) return true;
  FILE *f = open_memstream(&text, &bytes);
  const bool made = f && hk_metrics_write(f, NULL) == HK_OK;
  if ((f && fclose(f)) || !made) {
    free(text);
    return false;
  }
  free(s->text);
  s->text = text;
  s->bytes = bytes;
  s->made_ns = hk_now_ns();
  return true;
}

static void serve_answer(serve_client *c, const char *status, const char *text, size_t bytes, bool body) {
  FILE *f = open_memstream(&c->answer, &c->n);
  if (f) {
    fprintf(f,
            "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: %zu\r\nConnection: close\r\n\r\n",
            status, bytes);
    if (body) fwrite(text, 1, bytes, f);
  }
  c->sent = 0;
  c->since_ns = hk_now_ns();
  if (!f || fclose(f) || !c->answer) serve_drop(c);
}

static void serve_refuse(serve_client *c, const char *status) {
  char text[64];
  const int n = snprintf(text, sizeof text, "%s\n", status);
  serve_answer(c, status, text, (size_t)n, true);
}

/* The path of the request's first line, without a query; NULL: it is none. */
static char *serve_path(char *line, bool *head) {
  line[strcspn(line, "\r\n")] = 0;
  char *path = strchr(line, ' '), *version = path ? strchr(path + 1, ' ') : NULL;
  if (!version || strncmp(version + 1, "HTTP/1.", 7) != 0) return NULL;
  *path = *version = 0;
  *head = !strcmp(line, "HEAD");
  path[1 + strcspn(path + 1, "?")] = 0;
  return path + 1;
}

static void serve_request(serve_server *s, serve_client *c) {
  bool head;
  char *path = serve_path(c->request, &head);
  if (!path)
    serve_refuse(c, "400 Bad Request");
  else if (!head && strcmp(c->request, "GET") != 0)
    serve_refuse(c, "405 Method Not Allowed");
  else if (strcmp(path, "/metrics") != 0)
    serve_refuse(c, "404 Not Found");
  else if (!serve_renew(s))
    serve_refuse(c, "500 Internal Server Error");
  else
    serve_answer(c, "200 OK", s->text, s->bytes, !head);
}

/* ---- connections ---- */

static void serve_read(serve_server *s, serve_client *c) {
  char rest[REQUEST];
  const bool ignored = c->answer != NULL;
  const ssize_t n =
      recv(c->fd, ignored ? rest : c->request + c->have, ignored ? sizeof rest : REQUEST - 1 - c->have, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    serve_drop(c);
    return;
  }
  if (ignored) return;
  c->have += (size_t)n;
  c->request[c->have] = 0;
  if (memmem(c->request, c->have, "\r\n\r\n", 4) || memmem(c->request, c->have, "\n\n", 2))
    serve_request(s, c);
  else if (c->have == REQUEST - 1)
    serve_refuse(c, "431 Request Header Fields Too Large");
}

static void serve_send(serve_client *c) {
  while (c->sent < c->n) {
    const ssize_t n = send(c->fd, c->answer + c->sent, c->n - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      serve_drop(c);
      return;
    }
    c->sent += (size_t)n;
    c->since_ns = hk_now_ns();
  }
  c->over = true;
  (void)shutdown(c->fd, SHUT_WR); /* to close it now would reset it if the client has sent more */
}

/* An unused place, else that of the client that has been silent for the longest time. */
static serve_client *serve_place(serve_server *s) {
  serve_client *found = &s->clients[0];
  for (serve_client *c = s->clients; c < s->clients + CLIENTS; c++) {
    if (c->fd < 0) return c;
    if (c->since_ns < found->since_ns) found = c;
  }
  serve_drop(found);
  return found;
}

static void serve_accept(serve_server *s, hk_waiter *w) {
  const int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) (void)hk_wait_nap(w, -1, serve_pause_ns);
    return;
  }
  serve_client *c = serve_place(s);
  c->fd = fd;
  c->since_ns = hk_now_ns();
  c->have = c->n = c->sent = 0;
  c->over = false;
}

static void serve_turn(serve_server *s, hk_waiter *w) {
  struct pollfd p[CLIENTS + 1];
  serve_client *of[CLIENTS];
  unsigned n = 0;
  for (serve_client *c = s->clients; c < s->clients + CLIENTS; c++) {
    if (c->fd < 0) continue;
    of[n] = c;
    p[n++] = (struct pollfd){.fd = c->fd, .events = c->answer && !c->over ? POLLOUT : POLLIN};
  }
  p[n] = (struct pollfd){.fd = s->fd, .events = POLLIN};
  if (!n)
    (void)hk_wait_nap(w, s->fd, serve_day_ns);
  else
    (void)hk_wait_poll(w, p, n + 1);
  for (unsigned i = 0; i < n; i++) {
    serve_client *c = of[i];
    if (p[i].revents & POLLIN) serve_read(s, c);
    if (c->fd >= 0 && p[i].revents & POLLOUT) serve_send(c);
    if (c->fd >= 0 &&
        (p[i].revents & (POLLERR | POLLHUP | POLLNVAL) || hk_ago_ns(hk_now_ns(), c->since_ns) >= serve_patience_ns))
      serve_drop(c);
  }
  if (!n || p[n].revents) serve_accept(s, w);
}

/* "9465", "10.0.0.7:9465", "[::1]:9465". */
static hk_status serve_listen(const char *where, hk_addr *at, int *fd) {
  const hk_settings *settings = hk_tool_settings();
  char local[32];
  const bool port_alone = where[strspn(where, "0123456789")] == 0 && strlen(where) <= 5;
  snprintf(local, sizeof local, "127.0.0.1:%.5s", where);
  HK_OR_RETURN(hk_addr_parse(settings, at, port_alone ? local : where));
  *fd = socket(at->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int one = 1;
  if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) || bind(*fd, &at->sa, hk_addr_len(at)) ||
      listen(*fd, BACKLOG))
    return HK_FAIL_ERRNO("cannot listen at %s: is the address this host's, and the port free?", where);
  socklen_t n = sizeof *at; /* port 0: the kernel has chosen one */
  (void)getsockname(*fd, &at->sa, &n);
  return HK_OK;
}

int hk_metrics_serve(const char *where) {
  const hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_addr at;
  char text[HK_ADDR_TEXT];
  serve_server *s = calloc(1, sizeof *s);
  if (!s) return hk_tool_wrong("out of memory");
  for (int i = 0; i < CLIENTS; i++) s->clients[i].fd = -1;
  const hk_status rc = serve_listen(where, &at, &s->fd);
  if (rc != HK_OK) {
    free(s);
    return hk_tool_failed(rc);
  }
  fprintf(stderr, "hocket metrics: GET /metrics is answered at %s\n", hk_addr_format(&at, text));
  hk_wait_begin(&w, &env);
  for (;;) serve_turn(s, &w); /* until the user interrupts it */
}
