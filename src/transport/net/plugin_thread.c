/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for each communicator that uses a net plugin. NCCL has one, and plugins rely on it: aws-ofi-nccl has an
 * endpoint for each thread that calls listen or begins to connect. Connections of one endpoint fail together, when one
 * of them is closed with requests under way (as an aborted communicator's are). If all communicators of the user's
 * thread had one endpoint, one of them could end the others. The thread lives as long as the communicator, so that no
 * other thread gets its number. */
#include "../../base/thread.h"
#include "plugin.h"

void hk_plugin_thread_init(hk_plugin_thread *t) {
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->asked, NULL);
  pthread_cond_init(&t->answered, NULL);
}

static void *thread_main(void *arg) {
  hk_plugin_thread *t = arg;
  pthread_setname_np(pthread_self(), "hocket-plugin");
  pthread_mutex_lock(&t->lock);
  for (;;) {
    while (!t->call && !t->stop) pthread_cond_wait(&t->asked, &t->lock);
    if (!t->call) break;
    pthread_mutex_unlock(&t->lock);
    t->call(t->arg);
    pthread_mutex_lock(&t->lock);
    t->call = NULL;
    pthread_cond_signal(&t->answered);
  }
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

void hk_plugin_thread_call(hk_plugin_thread *t, void (*call)(void *arg), void *arg) {
  if (!t->made) t->made = hk_thread_start(&t->id, 0, thread_main, t) == 0;
  if (!t->made) { /* no more threads: the connection is worth more than what this one is for */
    call(arg);
    return;
  }
  pthread_mutex_lock(&t->lock);
  t->arg = arg;
  t->call = call;
  pthread_cond_signal(&t->asked);
  while (t->call) pthread_cond_wait(&t->answered, &t->lock);
  pthread_mutex_unlock(&t->lock);
}

void hk_plugin_thread_end(hk_plugin_thread *t) {
  if (t->made) {
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->asked);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->id, NULL);
  }
  pthread_cond_destroy(&t->answered);
  pthread_cond_destroy(&t->asked);
  pthread_mutex_destroy(&t->lock);
}
